"""Fork a process that outlives its parent and ends by itself at a deadline."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable


def start(work: Callable[[], None], deadline_s: float, keep: tuple[int, ...] = ()) -> int:
    """Run ``work`` in a process of its own session, and return its id. The kernel ends it after ``deadline_s`` at the latest.

    It is forked, not started: nothing has to be found or imported again. Call it before there are threads.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        _alone(keep)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, deadline_s)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # of the terminal, or of a launcher that ends a rank
        work()
        status = 0
    finally:
        os._exit(status)


def _alone(keep: tuple[int, ...]) -> None:
    """No stream of the launcher's is held open: it may wait for their end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def allow_connections() -> int:
    """Raise the limit of open files as far as is allowed, and return it: a coordinator holds a connection of each node."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
