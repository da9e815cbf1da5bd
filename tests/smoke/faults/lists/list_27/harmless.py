"""What is odd and breaks nothing."""

from __future__ import annotations

from smoke.faults.means import patched, refused, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

STAGES = "device,gemm,train,dataloader,checkpoint,rendezvous,allreduce,stragglers,ddp"

_WAYS: tuple[tuple[str, str, str, Inject], ...] = (
    ("affinity-refused", "A sandbox refuses sched_setaffinity (EPERM)", "seccomp", refused(203, 1)),
    ("one-arena", "MALLOC_ARENA_MAX=1 and LD_BIND_NOW=1, as clusters set them", "environment", variables(MALLOC_ARENA_MAX="1", LD_BIND_NOW="1")),
    ("output-wrapped", "A trainer has standard output and errors go through an object of its own without fileno (a log, a notebook)", "sitecustomize", patched("""
        import sys
        class Kept:
            def __init__(self, under):
                self._under = under
            def write(self, text):
                return self._under.write(text)
            def flush(self):
                self._under.flush()
            encoding, errors = "utf-8", "strict"
        sys.stdout = Kept(sys.stdout)
    """)),
    ("shared-by-files", "Workers hand tensors over by files (set_sharing_strategy('file_system')), as where few may be open", "sitecustomize", patched("""
        import torch.multiprocessing
        torch.multiprocessing.set_sharing_strategy("file_system")
    """, when="torch.multiprocessing")),
    ("loopback-of-1500", "The loopback carries packets of 1,500 bytes", "namespace", unshared("--net", "ip link set lo mtu 1500 up")),
    ("batch-policy", "All ranks run under SCHED_BATCH", "sitecustomize", patched("""
        import os
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    """)),
    ("talkative", "OpenMP shows its settings, torch's C++ part and its exchanges say what they do", "environment",
        variables(OMP_DISPLAY_ENV="true", TORCH_CPP_LOG_LEVEL="INFO", TORCH_DISTRIBUTED_DEBUG="INFO")),
    ("each-on-its-own", "A launcher binds each rank to one CPU of its own", "sitecustomize", patched("""
        import os
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[int(os.environ["RANK"]) % len(cpus)]})
    """)),
)  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means=means, stages=STAGES) for name, what, means, inject in _WAYS
)
