"""Names that are none."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


@contextlib.contextmanager
def resolving(name: str) -> Iterator[None]:
    """Raise OSError where Python's codec of names refuses one (an empty label, one of 64 signs, bytes that are not text): by itself it raises UnicodeError, which nobody who connects expects.

    >>> with resolving("a..b"):
    ...     "a..b".encode("idna")
    Traceback (most recent call last):
    OSError: [Errno 22] no host has such a name: 'a..b'
    """
    try:
        yield
    except UnicodeError:
        raise OSError(errno.EINVAL, f"no host has such a name: {name[:100]!r}") from None
