"""Use a host name that may not be a valid one."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


@contextlib.contextmanager
def resolving(name: str) -> Iterator[None]:
    """Turn the UnicodeError of Python's IDNA codec (an empty label, one of 64 characters, bytes that are not text) into the OSError that code that connects handles.

    >>> with resolving("a..b"):
    ...     "a..b".encode("idna")
    Traceback (most recent call last):
    OSError: [Errno 22] no host has such a name: 'a..b'
    """
    try:
        yield
    except UnicodeError:
        raise OSError(errno.EINVAL, f"no host has such a name: {name[:100]!r}") from None
