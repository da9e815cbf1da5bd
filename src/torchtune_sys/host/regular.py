"""Open files to read, and nothing else: opening alone starts a watchdog, winds a tape back, and lets who writes to a FIFO go on into nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_HELD = os.O_PATH | os.O_CLOEXEC
READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class NotRegular(OSError):
    """Something other than a regular file, which was not opened."""

    strerror: str


def open_regular(path: str, flags: int = 0) -> int:
    """Return a descriptor of a regular file, opened to be read; ``flags`` may be O_NOFOLLOW. It is looked at before it is opened, and is the same then, whoever
    exchanges what lies there. Raises OSError (NotRegular for what is none), ValueError for a name that none can have."""
    held = os.open(path, _HELD | flags)
    try:
        return opened(held, path)
    finally:
        os.close(held)


def opened(held: int, path: str) -> int:
    """Return the same of what a descriptor of O_PATH stands for."""
    kind = os.fstat(held).st_mode
    if stat.S_ISLNK(kind):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not stat.S_ISREG(kind):
        raise NotRegular(errno.EINVAL, "not a regular file", path)
    return reopened(held, path)


def reopened(held: int, path: str) -> int:
    """Return a descriptor to read of what one of O_PATH stands for, whatever it is. Raises OSError."""
    try:
        return os.open(f"/proc/self/fd/{held}", READING)
    except FileNotFoundError:  # no /proc is mounted, or not this process's
        return os.open(path, READING | os.O_NOFOLLOW)


@contextlib.contextmanager
def held_below(root: str, place: str, identity: tuple[int, int]) -> Iterator[int]:
    """Provide a descriptor of O_PATH of what lies at ``place`` below a directory, of which it is known which one it is: no link on the way is followed, also none that is put there meanwhile.
    Raises OSError."""
    held = os.open(root, _HELD | os.O_DIRECTORY)
    try:
        if identity != identity_of(held):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), root)
        for part in filter(None, place.split("/")):
            inner = os.open(part, _HELD | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def identity_of(place: int | str) -> tuple[int, int]:
    info = os.stat(place)
    return info.st_dev, info.st_ino
