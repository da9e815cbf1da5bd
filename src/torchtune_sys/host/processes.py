"""Read what /proc tells of the machine's processes (proc(5)). A process that has ended, or that another user hides, tells nothing."""

from __future__ import annotations

import contextlib
import os

from torchtune_sys.model.numbers import natural

_LONGEST = 2 << 20
"""Of an environment, which may be a quarter of the usual stack (execve(2))."""


def pids() -> list[int]:
    """Return the processes of this PID namespace: all, since whoever starts very many would hide others."""
    return [pid for name in os.listdir("/proc") if (pid := natural(name)) is not None]


def owner(pid: int) -> int:
    """Return whose a process is by its directory, which is cheap to ask: root's also where it keeps its memory to itself (prctl(2), PR_SET_DUMPABLE); -1 for one that is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def read(pid: int, name: str) -> bytes:
    """Return one file of a process, such as ``stat`` or ``environ``; nothing for one that cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(_LONGEST)
    except OSError:
        return b""


def text(pid: int, name: str) -> str:
    """Return the same as :func:`read` as text, with U+FFFD for bytes that are not UTF-8."""
    return read(pid, name).decode(errors="replace")


def state(pid: int) -> str:
    """Return a process's letter in ``stat``: ``T`` or ``t`` is stopped, by a signal or by a tracer; ``""`` for one that is gone. One whose cgroup is frozen (a
    paused container), which the kernel shows as asleep or blocked, is stopped, too."""
    letter = _state_and_parent(pid)[0]
    return "T" if letter in ("D", "S") and _is_frozen(pid) else letter


def _is_frozen(pid: int) -> bool:
    """Return what the process's cgroup tells (cgroups(7); Documentation/admin-guide/cgroup-v2.rst, cgroup.events)."""
    for line in text(pid, "cgroup").split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version_1 = "freezer" in controllers.split(",")
        if version_1 or not controllers:
            place = f"/sys/fs/cgroup/freezer{path}/freezer.state" if version_1 else f"/sys/fs/cgroup{path}/cgroup.events"
            with contextlib.suppress(OSError), open(place, "rb") as file:
                words = file.read(_LONGEST).split()
                if b"FROZEN" in words or (b"frozen" in words and words[words.index(b"frozen") + 1 :][:1] == [b"1"]):
                    return True
    return False


def parent(pid: int) -> int:
    """Return the process that started this one, or has adopted it; 0 for one that is gone."""
    return _state_and_parent(pid)[1]


def _state_and_parent(pid: int) -> tuple[str, int]:
    words = read(pid, "stat").rpartition(b")")[2].split()[:2]  # the name in front may hold blanks and brackets
    return (words[0].decode(), int(words[1])) if len(words) == 2 else ("", 0)


def real_user(pid: int) -> int:
    """Return who started a process; -1 for one that is gone. The effective user of a program with the set-user-ID bit is another one."""
    uid = read(pid, "status").partition(b"\nUid:")[2].split()[:1]
    return int(uid[0]) if uid else -1


def children(pid: int) -> list[int]:
    """Return the processes that any thread of this one started (proc_pid_task(5)). A kernel without CONFIG_PROC_CHILDREN lists none: each process is asked for its parent."""
    if not os.path.exists("/proc/thread-self/children"):
        return [one for one in pids() if parent(one) == pid]
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, read(pid, f"task/{thread}/children").split())
    return found


def descendants(pid: int) -> list[int]:
    """Return a process's children, theirs, and so on; a rank's DataLoader workers and compilers are among them."""
    found = children(pid)
    for one in found:
        found += children(one)
    return found
