"""What is odd and breaks nothing."""

from __future__ import annotations

from smoke.faults.means import patched, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

STAGES = (
    "device,gemm,stress,layers,optimizer,train,amp-fp16,dataloader,checkpoint,rendezvous,allreduce,stragglers,ddp,accumulate,fsdp"
)

_WAYS: tuple[tuple[str, str, Inject], ...] = (
    ("started-by-nohup", "nohup has the ranks ignore SIGHUP, and standard input is empty", patched("""
        import os, signal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    """)),
    ("collector-of-a-trainer", "A trainer lets Python's collector come seldom and leave alone what is there (gc.freeze, gc.set_threshold)", patched("""
        import gc
        gc.freeze()
        gc.set_threshold(50000, 20, 100)
    """)),
    ("python-without-assertions", "Python leaves assertions out (PYTHONOPTIMIZE=1)", variables(PYTHONOPTIMIZE="1")),
    ("heartbeat-thread", "A thread tells a monitor each 50 ms that a rank lives", patched("""
        import threading, time
        def beat():
            while True:
                open("/proc/self/status").read()
                time.sleep(0.05)
        threading.Thread(target=beat, daemon=True).start()
    """)),
    ("distributed-in-detail", "TORCH_DISTRIBUTED_DEBUG=DETAIL compares each exchange among the ranks", variables(TORCH_DISTRIBUTED_DEBUG="DETAIL")),
    ("private-and-patient", "Files are the user's alone (umask 077), no core is dumped, and all ranks have niceness 10", patched("""
        import os, resource
        os.umask(0o077)
        os.nice(10)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    """)),
)  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means="sitecustomize", stages=STAGES) for name, what, inject in _WAYS
)
