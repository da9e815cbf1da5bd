"""The quarter that stays closed until the end: only its first result counts."""

from __future__ import annotations

from smoke.faults.means import limited, variables
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("each-warning-is-an-error", "PYTHONWARNINGS=error: the first warning of any library ends the training", "device", "torch-setting-changed",
        inject=variables(PYTHONWARNINGS="error"), means="environment", seen="PYTHONWARNINGS")._replace(wrong="no fault: training works under it"),
    row("sigpipe-ends-ranks", "A plug-in gives SIGPIPE its default again: a log reader or peer that leaves ends the rank without a word", "device", "signals-blocked", """
        import signal
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    """, seen="SIGPIPE"),
    row("threads-beyond-cpus", "A plug-in has torch compute with 48 threads in each rank, on a host of a few CPUs", "device", "torch-setting-changed", """
        import torch
        torch.set_num_threads(48)
    """, seen="48 threads"),
    row("file-size-of-a-megabyte", "No file may grow beyond 1 MB (ulimit -f): the small checkpoint of a test fits, none of a training does", "checkpoint", "file-size-limit",
        inject=limited("--fsize=1048576:1048576"), means="rlimit"),
)  # fmt: skip
