"""A lock for runs that change the host. Two at once would record each other's changes as the previous state."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from torchtune_sys.errors import UserError
from torchtune_sys.host.state_folder import require_trusted
from torchtune_sys.remediation.apply import durable


class Busy(UserError):
    """Another run is changing this host."""

    exit_code = 1


@contextlib.contextmanager
def held(folder: str, wait_s: float) -> Iterator[None]:
    """Hold the lock, waiting for it at most ``wait_s`` seconds. Raises Busy, ForeignState, OSError."""
    require_trusted(folder)
    durable.make_folders(durable.missing_folders(f"{folder}/x"), 0o700)
    handle = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        _take(handle, deadline)
        with contextlib.suppress(OSError):  # who holds it is told to others; on a full disk undo must work without
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
        _after_script(f"{folder}/script.lock", deadline)  # which looks for us once it has made its own
        yield
    finally:
        os.close(handle)


def _take(handle: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip()
                raise _busy(holder) from None
            time.sleep(0.1)


def _busy(holder: str) -> Busy:
    return Busy(f"process {holder or '?'} is changing this host", "wait for it, or give --wait SECONDS")


def _after_script(place: str, deadline: float) -> None:
    """Wait for a generated script, which holds the host by a symbolic link that names its process, that one's start and the host's."""
    while True:
        try:
            holder, started, boot = os.readlink(place).split(" ")
        except (OSError, ValueError):
            return
        if boot != _word("/proc/sys/kernel/random/boot_id") or started != _started(holder):
            return  # killed: the next script takes it over
        if time.monotonic() >= deadline:
            raise _busy(holder)
        time.sleep(0.1)


def _started(process: str) -> str:
    """Ticks since the host's start, field 22 of proc(5); empty if there is no such process."""
    fields = _word(f"/proc/{process}/stat").rpartition(")")[2].split() if process.isdecimal() else []
    return fields[19] if len(fields) > 19 else ""


def _word(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
