"""One at a time: two runs that change the host at once would each take the other's work for what was there before."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from torchtune_sys.apply import durable
from torchtune_sys.errors import UserError


class Busy(UserError):
    """Another run is changing this host."""

    exit_code = 1


@contextlib.contextmanager
def held(folder: str, wait_s: float) -> Iterator[None]:
    """Hold the lock, waiting for it at most ``wait_s`` seconds. Raises Busy, OSError."""
    durable.make_folders(durable.missing_folders(f"{folder}/x"), 0o700)
    handle = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(handle, time.monotonic() + wait_s)
        with contextlib.suppress(OSError):  # who holds it is told to others; on a full disk undo must work without
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
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
                raise Busy(f"process {holder or '?'} is changing this host", "wait for it, or give --wait SECONDS") from None
            time.sleep(0.1)
