"""Whether the kernel ended a process for lack of memory."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Iterator, Tuple

from torchtune_sys.smoke.worker.channel import channel

OUT_OF_MEMORY = "the kernel killed a process for lack of memory"
MORE_MEMORY = "more memory, or a larger limit"


def memory_kills() -> int:
    """How often it did so far: in this cgroup (v2, v1), else on this machine."""
    for path, key in (*_cgroup_files(), ("/proc/vmstat", "oom_kill")):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == key:
                    return int(count)
    return 0


def _cgroup_files() -> Iterator[Tuple[str, str]]:
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file.read().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield "/sys/fs/cgroup%s/memory.events" % path, "oom_kill"
            elif "memory" in controllers.split(","):
                yield "/sys/fs/cgroup/memory%s/memory.oom_control" % path, "oom_kill"


def say_if_memory_ran_out(kills: int) -> None:
    """Say so where memory ran out: a rank that the kernel killed has no last word. ``kills``: as many as there were when the ranks began."""
    if not channel.driven and memory_kills() > kills:
        sys.stderr.write("the smoke test: %s [host-memory-oom]\n    %s\n" % (OUT_OF_MEMORY, MORE_MEMORY))
        sys.stderr.flush()


def say_why_when_ended() -> None:
    """Who starts the other ranks ends them (SIGTERM) when it misses one: without a driver there is only their word."""
    own, kills = os.getpid(), memory_kills()

    def ended(number: int, _frame: object) -> None:
        if os.getpid() == own:  # and no worker of a DataLoader
            say_if_memory_ran_out(kills)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, ended)
