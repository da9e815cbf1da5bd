"""Kill what a child that ran as another user leaves behind outside its process group. Otherwise it would outlive a Prolog, without a job's limits.

A process whose parent ends becomes ours, as long as such a child runs (prctl(2), PR_SET_CHILD_SUBREAPER), however often it starts a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from torchtune_sys.host import processes

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 0.5
"""One that starts others as fast as they are killed is left."""


_earlier: set[int] = set()
"""Children that we had before any that runs as another user: of whoever executed this program in its own place."""


def adopt(wanted: bool) -> None:
    """Have orphans of our children become ours, or not any more. Does nothing where Python lacks ctypes."""
    if wanted:
        _earlier.clear()
        _earlier.update(processes.children(os.getpid()))
    with contextlib.suppress(ImportError, OSError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def end(uid: int, others: Collection[int]) -> None:
    """Kill our children that run as this user, but for ``others``, and what becomes ours by that. A user may have more numbers (/etc/subuid, newuidmap(1)): what runs
    neither as us nor as what we were given by an earlier program is theirs, too."""
    limit = time.monotonic() + _PATIENCE_S
    while time.monotonic() < limit:
        left = _of(uid, others)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):  # it stays our child, and its number its own, until it is waited for
                os.kill(pid, signal.SIGKILL)
                if os.waitpid(pid, os.WNOHANG) == (0, 0) and processes.state(pid) == "Z":
                    others = {*others, pid}  # somebody traces it: it has ended, and its tracer alone can reap it
        time.sleep(0.002)


def is_asleep(uid: int, others: Collection[int]) -> bool:
    """Return whether such a child, that is not executed yet, sleeps or is stopped. One that waits for a CPU is runnable, one that waits for a disk or a server is not
    to be woken by signals (``D``), but one whose file is leased is (__break_lease of fs/locks.c)."""
    ours = processes.read(os.getpid(), "cmdline")
    return any(processes.state(pid) in ("S", "T", "t") for pid in _of(uid, others) if processes.read(pid, "cmdline") == ours)


def _of(uid: int, others: Collection[int]) -> list[int]:
    found = [(pid, processes.real_user(pid)) for pid in processes.children(os.getpid()) if pid not in others]
    return [pid for pid, user in found if user == uid or (user not in (-1, os.geteuid()) and pid not in _earlier)]
