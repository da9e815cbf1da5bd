"""What is odd and breaks nothing: long pauses, other ways of rounding, and what else a host does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from smoke.faults.bench import Bench
from smoke.faults.lists.list_17.harmless import has_met
from smoke.faults.means import loading, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

_BUSY = 6
_PAUSE_S = 25


def paused_for_long(met: bool) -> Inject:
    """All processes stand still for 25 s, as where a virtual machine is moved: before ranks meet, or once they have."""

    def inject(bench: Bench) -> None:
        look = loading(1)

        def pause() -> None:
            until = time.monotonic() + 200
            while time.monotonic() < until and not (has_met(bench) if met else look(bench) is not None):
                time.sleep(0.1)
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in bench.processes():
                    with contextlib.suppress(OSError):
                        if pid != os.getpid():
                            os.kill(pid, number)
                time.sleep(_PAUSE_S)

        bench.watchers.append(pause)

    return inject


def busy_host(bench: Bench) -> None:
    """Others compute beside it."""
    for _ in range(_BUSY):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        bench.closing.callback(other.wait)
        bench.closing.callback(other.kill)


def on_shared_memory(bench: Bench) -> None:
    """Temporary files lie in memory."""
    place = f"/dev/shm/{bench.mark}"
    os.mkdir(place)
    bench.closing.callback(shutil.rmtree, place)
    bench.env["TMPDIR"] = place


_WAYS: Mapping[str, tuple[str, str, Inject]] = {
    "paused-long-early": ("All processes stand still for 25 s before ranks meet", "signal", paused_for_long(False)),
    "paused-long-once-met": ("All processes stand still for 25 s while ranks exchange", "signal", paused_for_long(True)),
    "mkl-compatible": ("MKL rounds as on every processor alike (MKL_CBWR=COMPATIBLE)", "environment", variables(MKL_CBWR="COMPATIBLE")),
    "openmp-active": ("OpenMP's threads wait by spinning", "environment", variables(OMP_WAIT_POLICY="ACTIVE", GOMP_SPINCOUNT="100000")),
    "development-mode": ("Python's development mode (PYTHONDEVMODE)", "environment", variables(PYTHONDEVMODE="1")),
    "assertions-off": ("Python without assertions and docstrings (PYTHONOPTIMIZE=2)", "environment", variables(PYTHONOPTIMIZE="2")),
    "files-in-memory": ("TMPDIR lies below /dev/shm", "environment", on_shared_memory),
    "busy-host": ("Six other processes compute all the time", "environment", busy_host),
}  # fmt: skip

_TOLD: Mapping[str, tuple[str, str]] = {"development-mode": ("device", "torch-setting-changed")}
"""What slows a training is told: development mode checks each allocation."""

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, *_TOLD.get(name, ("", "")), inject=inject, means=means, stages="")
    for name, (what, means, inject) in _WAYS.items()
)
