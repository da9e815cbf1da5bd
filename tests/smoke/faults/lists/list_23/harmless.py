"""What is odd and breaks nothing."""

from __future__ import annotations

from smoke.faults.means import patched, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

STAGES = "device,gemm,stress,train,dataloader,checkpoint,rendezvous,allreduce,stragglers,ddp,checkpoint-sharded"

_WAYS: tuple[tuple[str, str, str, Inject], ...] = (
    ("first-product-slow", "The first product of each rank takes 1.5 s (a library is loaded, code is made)", "sitecustomize", patched("""
        import time
        import torch
        real, first = torch.matmul, [1.5]
        def matmul(*args, **more):
            time.sleep(first[0])
            first[0] = 0
            return real(*args, **more)
        torch.matmul = matmul
    """)),
    ("talkative", "Libraries tell on standard error what they do (OMP_DISPLAY_ENV, TORCH_CPP_LOG_LEVEL, TORCH_DISTRIBUTED_DEBUG=INFO)", "environment",
        variables(OMP_DISPLAY_ENV="true", TORCH_CPP_LOG_LEVEL="INFO", TORCH_DISTRIBUTED_DEBUG="INFO", TORCH_SHOW_CPP_STACKTRACES="1")),
    ("one-arena", "The C library has one arena, and asks for large pages", "environment", variables(MALLOC_ARENA_MAX="1", GLIBC_TUNABLES="glibc.malloc.hugetlb=1")),
    ("threads-sleep-at-once", "Threads of OpenMP sleep as soon as they have nothing to do", "environment", variables(OMP_WAIT_POLICY="PASSIVE", KMP_BLOCKTIME="0", OMP_PROC_BIND="false")),
    ("settled-python", "Python has one seed for hashes, writes no bytecode and takes UTF-8", "environment",
        variables(PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1", PYTHONIOENCODING="utf-8", PYTORCH_JIT="0")),
    ("small-place-in-memory", "TMPDIR is a tmpfs of 400 MB that runs no programs and keeps no times of reading", "namespace",
        unshared("-m --propagation private", "mkdir {folder}/memory\nmount -t tmpfs -o size=400m,noexec,nodev,noatime tmpfs {folder}/memory\nexport TMPDIR={folder}/memory")),
)  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means=means, stages=STAGES) for name, what, means, inject in _WAYS
)
