"""What is odd and breaks nothing: how processes are started and laid out, and a pause in the midst of exchanges."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from smoke.faults.bench import Bench
from smoke.faults.lists.list_16.harmless import through
from smoke.faults.means import all_of, limited, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row


def paused_once_met(bench: Bench) -> None:
    """All processes are stopped for 4 s as soon as a rank has a connection to another."""

    def pause() -> None:
        until = time.monotonic() + 200
        while time.monotonic() < until and not has_met(bench):
            time.sleep(0.1)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in bench.processes():
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            time.sleep(4)

    bench.watchers.append(pause)


def has_met(bench: Bench) -> bool:
    pid = bench.rank(1)
    with contextlib.suppress(OSError):
        held = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()} if pid is not None else set()
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(row[3] == "01" and f"socket:[{row[9]}]" in held for row in rows)
    return False


_WAYS: Mapping[str, tuple[str, str, Inject]] = {
    "stack-unlimited": ("ulimit -s unlimited, which lays memory out otherwise", "rlimit", limited("--stack=unlimited:unlimited")),
    "stack-small": ("ulimit -s 1024", "rlimit", limited("--stack=1048576:1048576")),
    "addresses-fixed": ("Addresses are not random (setarch -R)", "environment", through("setarch", "-R")),
    "distributed-detail": ("Each exchange is checked by torch itself, and errors have stacks of C++", "environment",
        variables(TORCH_DISTRIBUTED_DEBUG="DETAIL", TORCH_SHOW_CPP_STACKTRACES="1")),
    "network-apart": ("A network namespace with a loopback alone", "namespace", unshared("--net", "ip link set lo up")),
    "user-apart": ("A user namespace in which the user is root", "namespace", through("unshare", "--user", "--map-root-user")),
    "allocator-lean": ("Reads and writes come last (ionice), and the C library keeps one arena", "environment",
        all_of(through("ionice", "-c", "3"), variables(MALLOC_ARENA_MAX="1", PYTHONMALLOC="malloc"))),
    "paused-once-met": ("All processes stand still for 4 s while ranks exchange", "signal", paused_once_met),
}  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means=means, stages="") for name, (what, means, inject) in _WAYS.items()
)
