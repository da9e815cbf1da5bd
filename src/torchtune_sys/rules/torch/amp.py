"""Rules on the number formats that these GPUs compute fast."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, gpus_told, kept
from torchtune_sys.model.values import Missing, NotApplicable, absent, need
from torchtune_sys.model.version import Version
from torchtune_sys.rules.gates import nvidia_gpus, nvidia_hardware, torch_imported
from torchtune_sys.rules.torch.common import Displays, capability, cuda_build, displays_beside, label, model_name

_SLOW_HALF = frozenset(((6, 1), (5, 0), (5, 2), (3, 5), (3, 7)))
"""Half precision at 1/64 of single (6.1), or not at all in hardware; 6.0 (P100) and the on-chip GPUs have it at full rate."""


_DISPLAY = "far smaller than the GPUs beside it, which compute these formats fast, or not shown to the session: left to a display"


def _for_a_display(s: Snapshot, gpu: Gpu, cc: Version) -> bool:
    """Return whether an older GPU may be left to a display beside those of Ampere or later."""
    return cc < (8, 0) and gpu in _beside_fast_ones(s)


@kept
def _beside_fast_ones(s: Snapshot) -> Displays:
    return displays_beside(s, [gpu for gpu in gpus_told(s) if not isinstance(its := capability(gpu), Missing) and its >= (8, 0)])


@rule(
    id="bf16-emulated",
    title="bfloat16 is emulated on these GPUs",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text='train with torch.autocast("cuda", dtype=torch.float16) and torch.amp.GradScaler("cuda") instead of bfloat16'
        ),
    ),
    applies=nvidia_hardware,
)
def bf16_emulated(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Hardware support for bfloat16 came with Ampere (compute capability 8.0); older GPUs emulate it in float32.

    Why it matters
        bfloat16 training runs on them, but slower than float32. torch.cuda.is_bf16_supported() still returns True, unless called
        with including_emulation=False.

    When to leave it
        Where training uses float32 or float16.

    References
        CUDA C Programming Guide, arithmetic throughput by compute capability; torch/cuda/__init__.py, is_bf16_supported.
    """
    cuda_build(s)
    for gpu in nvidia_gpus(s):
        cc = capability(gpu)
        if isinstance(cc, Missing):
            yield unsure(label(gpu), cc)
        elif _for_a_display(s, gpu, cc):
            yield Evidence(subject=label(gpu), seen=_DISPLAY, verdict=Verdict.NA)
        elif cc in _SLOW_HALF:
            yield Evidence(subject=label(gpu), seen="no short format is fast here: see fp16-without-speed", verdict=Verdict.NA)
        else:
            verdict = Verdict.FAIL if cc < (8, 0) else Verdict.PASS
            seen = f"{model_name(gpu)}, compute capability {cc[0]}.{cc[1]}"
            yield Evidence(subject=label(gpu), seen=seen, wanted="8.0 or later for bfloat16", verdict=verdict)


@rule(
    id="fp16-without-speed",
    title="float16 is no faster than float32 on these GPUs",
    severity=Severity.ADVICE,
    fix=(Advice(text="train in float32 here; autocast saves memory at best"),),
    applies=nvidia_hardware,
)
def fp16_without_speed(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Consumer Pascal GPUs compute float16 at 1/64 of their float32 rate; Maxwell has no float16 arithmetic.

    Why it matters
        Mixed precision makes training slower, not faster. The Tesla P100 (6.0) is the exception, and tensor cores begin with Volta (7.0).

    When to leave it
        float16 is used only to save memory.

    References
        CUDA C Programming Guide, arithmetic throughput by compute capability.
    """
    cuda_build(s)
    for gpu in nvidia_gpus(s):
        cc = capability(gpu)
        if isinstance(cc, Missing):
            yield unsure(label(gpu), cc)
        elif _for_a_display(s, gpu, cc):
            yield Evidence(subject=label(gpu), seen=_DISPLAY, verdict=Verdict.NA)
        else:
            verdict = Verdict.FAIL if cc in _SLOW_HALF else Verdict.PASS
            seen = f"{model_name(gpu)}, compute capability {cc[0]}.{cc[1]}"
            yield Evidence(subject=label(gpu), seen=seen, wanted="6.0, or 7.0 and later", verdict=verdict)


@rule(
    id="tf32-off",
    title="float32 matrix products do not use TF32",
    severity=Severity.ADVICE,
    fix=(Advice(text='if reduced precision is acceptable: torch.set_float32_matmul_precision("high") in the training script'),),
    applies=nvidia_hardware,
)
def tf32_off(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """With --live: by torch's default, float32 matrix products do not use the tensor cores of Ampere and later GPUs.

    Why it matters
        On an A100 or H100, float32 layers run at one eighth of the TF32 rate. Convolutions use TF32 by default, matrix products
        do not; under autocast most of them are bfloat16 anyway.

    When to leave it
        You need full float32 accuracy, or all large matrix products are in bfloat16 or float16.

    References
        torch/backends/cuda/__init__.py; https://pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere
    """
    imported = torch_imported(s)
    cuda_build(s)
    live = need(imported)
    if absent(live.tf32_matmul):
        raise NotApplicable("torch sees no GPU")
    if not any(cc >= (8, 0) for gpu in nvidia_gpus(s) if not isinstance(cc := capability(gpu), Missing)):
        raise NotApplicable("no GPU with TF32 (Ampere or later)")
    on = need(live.tf32_matmul)
    yield Evidence(
        subject="torch.backends.cuda.matmul",
        seen="TF32" if on else "IEEE float32",
        wanted="TF32 where accuracy allows",
        verdict=Verdict.PASS if on else Verdict.FAIL,
        source="torch",
    )
