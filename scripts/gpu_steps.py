"""The steps of ``./run gpu``, in order of value: what each starts, what it plants, and what is known after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gpu_faults


@dataclass(frozen=True)
class Step:
    """``argv`` is filled with the names of ``run_all``; ``settles``: what is known after it."""

    name: str
    settles: str
    argv: tuple[str, ...]
    limit_s: float = 540.0
    environment: dict[str, str] = field(default_factory=dict)
    healthy: bool = True
    """Nothing may be found; else a fault is injected, and it must be named."""
    files: dict[str, str] = field(default_factory=dict)
    """Names and texts of programs in a folder of the step's own, which its environment calls {folder}."""
    beside: str = ""
    """Python that runs beside it, on the same GPU, from its first line of output on."""


def hooked(text: str) -> dict[str, Any]:
    """Return what makes each Python of a step run ``text`` when it starts."""
    return {"environment": {"PYTHONPATH": "{folder}"}, "files": {"sitecustomize.py": text}}


def smoke(*words: str) -> tuple[str, ...]:
    return ("{tool}", "-m", "torchtune_sys", "smoke", "--python", "{python}", "--no-proof", "--format", "json", *words)


_DDP = ("--stages", "device,ddp", "--nproc-per-node", "2")


_ONE = ("--nproc-per-node", "1")
_FAST = ("--stages", "device,gemm,memory,train", *_ONE)
STEPS = (
    Step(
        "state",
        "the machine, its driver and libraries",
        ("{tool}", "-m", "torchtune_sys", "check", "--python", "{python}", "--format", "json"),
    ),
    Step("quick", "a healthy GPU is called healthy; --quick in 15 s", smoke("--quick")),
    Step("default", "all stages; several ranks, each with a GPU, or sharing one", smoke()),
    Step("one-rank", "NCCL with one rank", smoke(*_ONE)),
    Step(
        "rates",
        "what the bounds of gemm, memory and copy should be; whether repeated products keep their bits",
        ("{python}", "scripts/gpu_rates.py"),
    ),
    *(
        Step(f"repeat-{turn}", "tolerances, bits of the twins, spread of the rates", smoke("--quick", *_ONE))
        for turn in range(1, 6)
    ),
    Step("fault-hidden", "CUDA_VISIBLE_DEVICES is empty", smoke(*_FAST), 300.0, {"CUDA_VISIBLE_DEVICES": ""}, healthy=False),
    Step("fault-ordinal", "CUDA_VISIBLE_DEVICES names none", smoke(*_FAST), 300.0, {"CUDA_VISIBLE_DEVICES": "77"}, healthy=False),
    Step(
        "fault-two-ranks-nccl",
        "two NCCL ranks on one GPU",
        smoke("--stages", "allreduce", "--nproc-per-node", "2", "--backend", "nccl"),
        300.0,
        {"CUDA_VISIBLE_DEVICES": "0"},
        healthy=False,
    ),
    Step(
        "fault-interface",
        "NCCL_SOCKET_IFNAME names none",
        smoke("--stages", "allreduce", *_ONE, "--backend", "nccl"),
        300.0,
        {"NCCL_SOCKET_IFNAME": "nosuch0"},
        healthy=False,
    ),
    Step("fault-compiler", "no C compiler", smoke("--stages", "compile", *_ONE), 500.0, {"CC": "/nonexistent"}, healthy=False),
    Step(
        "fault-ptxas",
        "a ptxas that tells its version and assembles nothing",
        smoke("--stages", "compile", *_ONE),
        500.0,
        {"TRITON_PTXAS_PATH": "{folder}/ptxas", "TRITON_PTXAS_BLACKWELL_PATH": "{folder}/ptxas"},
        healthy=False,
        files={"ptxas": gpu_faults.PTXAS},
    ),
    Step(
        "fault-libraries",
        "LD_LIBRARY_PATH names a CUDA toolkit of the same release, whose libraries come before torch's own: nothing is to be found",
        smoke(*_FAST),
        300.0,
        {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
    ),
    Step(
        "fault-memory",
        "another process holds all but 900 MiB",
        smoke("--quick", *_ONE),
        300.0,
        healthy=False,
        beside=gpu_faults.HOLD,
    ),
    Step(
        "fault-product",
        "one element of each large product is wrong",
        smoke(*_FAST),
        300.0,
        healthy=False,
        **hooked(gpu_faults.FLIP),
    ),
    Step(
        "fault-assertion",
        "an assertion on the device",
        smoke("--quick", *_ONE),
        300.0,
        healthy=False,
        **hooked(gpu_faults.ASSERT),
    ),
    Step(
        "fault-killed",
        "SIGKILL of rank 1 in ddp",
        smoke(*_DDP),
        300.0,
        healthy=False,
        **hooked(gpu_faults.SIGNAL.replace("{signal}", "9")),
    ),
    Step(
        "fault-stopped",
        "SIGSTOP of rank 1 in ddp",
        smoke(*_DDP),
        300.0,
        healthy=False,
        **hooked(gpu_faults.SIGNAL.replace("{signal}", "19")),
    ),
    Step("script", "the script by itself", ("{python}", "{script}", "--level", "quick")),
    Step("interrupted", "after SIGINT no process of ours holds GPU memory", ("{python}", "{self}", "--interrupt")),
    Step(
        "thorough", "larger and longer: nine tenths of the memory, a minute under load", smoke("--thorough", "--timeout", "530")
    ),
)
