"""Whether the kernel ended a process for lack of memory."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, Iterable, Iterator, List, Optional

from torchtune_sys.smoke.worker.cgroups import cgroup_folders, told_of_memory
from torchtune_sys.smoke.worker.channel import channel

_OUT_OF_MEMORY = "the kernel killed a process for lack of memory"
MORE_MEMORY = "more memory, or a larger limit"
_TELLING_FILES = ("memory.events", "memory.oom_control")


def memory_kills() -> int:
    """How often it did so far: in this cgroup or one that holds it (v2, v1), else on this machine."""
    for path in (*_cgroup_files(), "/proc/vmstat"):
        found = kills_told_by(path)
        if found is not None:
            return found
    return 0


def kills_of_cgroup() -> List[Any]:
    """Return the file of this process's cgroup and how often it tells so far; nothing where there is none. Whoever started a rank may have put it into a cgroup of its own."""
    return next(([path, found] for path in _cgroup_files() for found in [kills_told_by(path)] if found is not None), [])


def killed_for_memory(before: int, told: Iterable[object] = ()) -> str:
    """Return that the kernel killed a process for lack of memory, and what its cgroup allows; "" where it did not. ``before``: how often it had until then; ``told``: what
    ranks told of their cgroups."""
    theirs = [os.path.dirname(os.path.realpath(each[0])) for each in told if isinstance(each, list) and killed_since(each)]
    if not theirs and memory_kills() <= before:
        return ""
    return _OUT_OF_MEMORY + told_of_memory(theirs or cgroup_folders("memory"))


def killed_since(told: object) -> bool:
    """Return whether there were more since a rank told of its cgroup. What a rank tells is believed of no file but a cgroup's."""
    if not (isinstance(told, list) and len(told) == 2 and isinstance(told[0], str) and isinstance(told[1], int)):
        return False
    path = os.path.realpath(told[0])
    if not path.startswith("/sys/fs/cgroup/") or os.path.basename(path) not in _TELLING_FILES:
        return False
    return (kills_told_by(path) or 0) > told[1]


def kills_told_by(path: str) -> Optional[int]:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _cgroup_files() -> Iterator[str]:
    """Yield where the count may stand: of this process's own cgroup first, then of those that hold it."""
    for folder in reversed(cgroup_folders("memory")):
        for name in _TELLING_FILES:
            yield "%s/%s" % (folder, name)


def say_if_memory_ran_out(kills: int) -> None:
    """Say so where memory ran out: a rank that the kernel killed has no last word. ``kills``: as many as there were when the ranks began."""
    killed = "" if channel.driven else killed_for_memory(kills)
    if killed:
        sys.stderr.write("the smoke test: %s [host-memory-oom]\n    %s\n" % (killed, MORE_MEMORY))
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
