"""How children end, and whether they say something. None is reaped here: until it is, nobody else has its number, by which its group is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time

from torchtune_sys.host import processes

_PATIENCE_S = 1.0


def is_ready(handle: int, timeout_s: float = 0.0, event: int = select.POLLIN) -> bool:
    """Return whether a descriptor can be read, or written to, within so many seconds. select(2) knows none above 1023, and whoever started us may have left thousands open."""
    poll = select.poll()
    poll.register(handle, event)
    return bool(poll.poll(timeout_s * 1000))


def status_of(child: subprocess.Popen[bytes]) -> int | None:
    """Return how a child has ended, as Popen tells it; None where it still runs, or nobody can tell. It is not reaped: until :func:`end` its group's number is nobody
    else's, who would be killed in its place (waitid(2), WNOWAIT)."""
    if child.returncode is not None:
        return child.returncode
    try:
        found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # SIGCHLD is ignored: the kernel has reaped it
        return child.poll()
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def all_ended(children: list[subprocess.Popen[bytes]], patience_s: float) -> bool:
    """Return whether all ended in time, also one that cannot be reaped: another process of its user's traces it, and waits for it first (ptrace(2))."""
    limit = time.monotonic() + patience_s
    while any(status_of(child) is None and processes.state(child.pid) != "Z" for child in children):
        if time.monotonic() >= limit:
            return False
        time.sleep(0.005)
    return True


def signal_of(child: subprocess.Popen[bytes]) -> str:
    """Return the name of the signal that ended a child whose output has ended; "" where none did, or where it still runs."""
    all_ended([child], _PATIENCE_S)
    try:
        return signal.Signals(-(status_of(child) or 0)).name
    except ValueError:
        return ""


def ended_by(rc: int) -> str:
    """Return the signal that a negative status stands for.

    >>> ended_by(-11), ended_by(-99)
    ('SIGSEGV', 'signal 99')
    """
    try:
        return signal.Signals(-rc).name
    except ValueError:
        return f"signal {-rc}"
