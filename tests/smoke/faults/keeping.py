"""Faults of compiling, and of what is written and read again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from smoke.faults.bench import Bench
from smoke.faults.means import all_of, as_user, from_path, options, owned_by_another, patched, unshared, variables
from smoke.faults.row import Fault, Inject

_PRIVATE = "-m --propagation private"


def _hidden(where: Callable[[Bench], str]) -> Inject:
    """An empty directory over another."""

    def inject(bench: Bench) -> None:
        unshared(_PRIVATE, f"mount -t tmpfs -o size=1m tmpfs {where(bench)}")(bench)

    return inject


def _headers(bench: Bench) -> str:
    words = [bench.python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def _small_disk(size: str) -> Inject:
    return all_of(
        unshared(_PRIVATE, f"mkdir -p {{folder}}/disk; mount -t tmpfs -o size={size} tmpfs {{folder}}/disk"),
        options("--scratch", "{folder}/disk"),
    )


ROWS = (
    Fault(
        name="disk-full",
        what="The disk for checkpoints has 100 kB",
        means="namespace",
        inject=_small_disk("100k"),
        stages="device,checkpoint",
        stage="checkpoint",
        cause="disk-full-or-quota",
    ),
    Fault(
        name="optimizer-not-restored",
        what="Loading a checkpoint forgets the optimizer's step count",
        means="sitecustomize",
        inject=patched("""
            import torch
            real = torch.optim.Optimizer.load_state_dict
            def load_state_dict(self, *args, **more):
                real(self, *args, **more)
                for one in self.state.values():
                    one["step"] = torch.zeros_like(torch.as_tensor(one["step"]))
            torch.optim.Optimizer.load_state_dict = load_state_dict
        """),
        stages="checkpoint",
        stage="checkpoint",
        cause="resume-differs",
    ),
    Fault(
        name="checkpoint-bit",
        what="One bit of a checkpoint is another after it was read",
        means="sitecustomize",
        inject=patched("""
            import torch
            real = torch.load
            def load(*args, **more):
                held = real(*args, **more)
                if "model" in held:
                    next(iter(held["model"].values())).view(torch.int32).view(-1)[3] ^= 1
                return held
            torch.load = load
        """),
        stages="checkpoint",
        stage="checkpoint",
        cause="checkpoint-damaged",
    ),
    Fault(
        name="generator-not-restored",
        what="The state of the random number generator is not restored",
        means="sitecustomize",
        inject=patched("""
            import torch
            torch.set_rng_state = lambda state: None
        """),
        stages="checkpoint",
        stage="checkpoint",
        cause="resume-differs",
    ),
    Fault(
        name="sharded-checkpoint-bit",
        what="One bit of a sharded checkpoint is another after one rank read it",
        means="sitecustomize",
        inject=patched(
            """
            import torch
            import torch.distributed.checkpoint as checkpoint
            real = checkpoint.load
            def load(held, *args, **more):
                found = real(held, *args, **more)
                with torch.no_grad():
                    first = next(iter(held["model"].values()))
                    first = first.to_local() if hasattr(first, "to_local") else first
                    first.view(torch.int32).view(-1)[0].bitwise_xor_(1)
                return found
            checkpoint.load = load
        """,
            rank=1,
        ),
        stage="checkpoint-sharded",
        cause="sharded-checkpoint-differs",
        run="all-1",
    ),
    Fault(
        name="disk-full-sharded",
        what="The disk for sharded checkpoints has 100 kB",
        means="namespace",
        inject=_small_disk("100k"),
        stages="checkpoint-sharded",
        stage="checkpoint-sharded",
        cause="disk-full-or-quota",
    ),
    Fault(
        name="no-compiler",
        what="No C++ compiler on PATH",
        means="environment",
        inject=from_path("gcc", "g++", "cc", "c++", "clang", "clang++", "c89-gcc", "c99-gcc"),
        stages="compile",
        stage="compile",
        cause="build-tool-missing",
        ranks=1,
    ),
    Fault(
        name="no-python-headers",
        what="Python's headers are not installed",
        means="namespace",
        inject=_hidden(_headers),
        stages="compile",
        stage="compile",
        cause="python-headers-missing",
        ranks=1,
    ),
    Fault(
        name="no-libc-headers",
        what="The C library's headers are not installed",
        means="namespace",
        inject=_hidden(lambda _bench: "/usr/include"),
        stages="compile",
        stage="compile",
        cause="compiler-headers-missing",
        ranks=1,
    ),
    Fault(
        name="cache-read-only",
        what="The compiler's cache is on a file system that is read only",
        means="namespace",
        inject=all_of(
            unshared(_PRIVATE, "mkdir -p {folder}/cache; mount -t tmpfs -o ro,mode=755 tmpfs {folder}/cache"),
            variables(TORCHINDUCTOR_CACHE_DIR="{folder}/cache"),
        ),
        stages="compile",
        stage="compile",
        cause="compile-cache-not-writable",
        ranks=1,
    ),
    Fault(
        name="cache-of-another",
        what="The directory for compiled code belongs to another user",
        means="environment",
        inject=all_of(
            owned_by_another("{folder}/torchinductor_nobody"),
            variables(TORCHINDUCTOR_CACHE_DIR="{folder}/torchinductor_nobody/below"),
            as_user(54321),
        ),
        stages="compile",
        stage="compile",
        cause="compile-cache-not-writable",
        ranks=1,
    ),
    Fault(
        name="compile-off",
        what="torch.compile is switched off (TORCH_COMPILE_DISABLE)",
        means="environment",
        inject=variables(TORCH_COMPILE_DISABLE="1"),
        stages="compile",
        stage="compile",
        cause="compile-does-nothing",
        ranks=1,
    ),
    Fault(
        name="compiled-wrong",
        what="Compiled code takes an approximation of an activation function",
        means="sitecustomize",
        inject=patched("""
            import torch
            real, plain = torch.compile, torch.nn.functional.gelu
            def compile(model, *args, **more):
                torch.nn.functional.gelu = lambda hidden, **_: plain(hidden, approximate="tanh")
                return real(model, *args, **more)
            torch.compile = compile
        """),
        stages="compile",
        stage="compile",
        cause="compiled-differs",
        ranks=1,
    ),
)
