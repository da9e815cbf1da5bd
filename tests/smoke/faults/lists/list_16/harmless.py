"""What is odd and breaks nothing: how a job is started, and pauses of all its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping

from smoke.faults.bench import Bench
from smoke.faults.means import loading, tool, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row


def through(*words: str) -> Inject:
    """Started by another program."""
    return lambda bench: bench.before.extend([tool(words[0]), *words[1:]])


def paused(bench: Bench) -> None:
    """All processes of the run are stopped for 3 s while ranks load, as where a virtual machine is moved."""
    look = loading(1)

    def pause() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until and look(bench) is None:
            time.sleep(0.1)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in bench.processes():
                with contextlib.suppress(OSError):
                    if pid != os.getpid():
                        os.kill(pid, number)
            time.sleep(3)

    bench.watchers.append(pause)


_WAYS: Mapping[str, tuple[str, str, Inject]] = {
    "time-namespace": ("A container has clocks of its own, eleven days ahead", "namespace", through("unshare", "--time", "--fork", "--monotonic", "1000000", "--boottime", "1000000")),
    "stdin-closed": ("Standard input is closed", "environment", through("sh", "-c", 'exec "$@" <&-', "sh")),
    "directory-removed": ("The working directory was removed", "environment", through("sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh")),
    "logging-on": ("torch and Python tell on all ranks what they do", "environment",
        variables(TORCH_CPP_LOG_LEVEL="INFO", TORCH_DISTRIBUTED_DEBUG="INFO", TORCH_LOGS="+dynamo", PYTHONFAULTHANDLER="1", PYTHONUNBUFFERED="1")),
    "openmp-dynamic": ("OpenMP may take fewer threads, and lets them sleep", "environment", variables(OMP_DYNAMIC="TRUE", OMP_WAIT_POLICY="PASSIVE", KMP_BLOCKTIME="0")),
    "batch-scheduling": ("Ranks are scheduled as a batch (SCHED_BATCH)", "environment", through("chrt", "--batch", "0")),
    "all-paused": ("All processes stand still for 3 s", "signal", paused),
    "environment-large": ("The environment has 600 variables more and one of 100 kB", "environment",
        variables(LARGE="x" * 100000, **{f"VARIABLE_{number}": "value " * 10 for number in range(600)})),
    "mounts-apart": ("A namespace of mounts of its own, with /proc that shows a user its own processes alone (hidepid)", "namespace",
        unshared("--mount", "mount -t proc -o hidepid=2 proc /proc")),
}  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means=means, stages="") for name, (what, means, inject) in _WAYS.items()
)
