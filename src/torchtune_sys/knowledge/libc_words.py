"""The C library's messages for errors and signals (strerror(3), strsignal(3), gai_strerror(3)), in English and in translation."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torchtune_sys.knowledge import tables

ERRORS = (
    "Address already in use", "Bad address", "Cannot allocate memory", "Cannot assign requested address", "Connection refused",
    "Connection timed out", "Disk quota exceeded", "Exec format error", "Function not implemented", "Input/output error",
    "Invalid argument", "Network is unreachable", "No locks available", "No route to host", "No space left on device",
    "No such device", "No such file or directory", "Operation not permitted", "Operation not supported", "Permission denied",
    "Resource temporarily unavailable", "Stale file handle", "Too many open files", "Transport endpoint is not connected",
)  # fmt: skip
"""Of which programs in Go and Rust, and people, write the letters in another case."""
ENGLISH = (
    *ERRORS, "Read-only file system", "File too large", "Bus error", "Illegal instruction", "Killed", "Segmentation fault",
    "Name or service not known", "Temporary failure in name resolution", "No address associated with hostname",
)  # fmt: skip

Translation = tuple[str, str]
"""What it says in another language, and in English."""


@functools.cache
def _translations() -> tuple[Translation, ...]:
    """Return them, the longest first: one may be a part of another."""
    found = ((row["words"], row["english"]) for row in tables.rows("libc_words"))
    return tuple(sorted(found, key=lambda each: -len(each[0])))


def translations_in(text: str) -> Sequence[Translation]:
    """Return those that occur in the text.

    >>> translations_in("cp: Permiso denegado")
    [('Permiso denegado', 'Permission denied')]
    """
    return [each for each in _translations() if each[0] in text]


def in_english(line: str, known: Sequence[Translation]) -> str:
    """Return the line with these words in English."""
    for words, english in known:
        if words in line:
            line = line.replace(words, english)
    return line
