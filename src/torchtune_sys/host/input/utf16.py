"""Text in UTF-16, which PowerShell's ``>`` writes, on WSL too."""

from __future__ import annotations

_MARKS = (b"\xff\xfe", b"\xfe\xff")


def is_utf16(data: bytes) -> bool:
    """Tell by the byte order mark."""
    return data.startswith(_MARKS)


def as_utf8(data: bytes) -> bytes:
    """Return text of UTF-16 in UTF-8; what has no byte order mark stays as it is.

    >>> as_utf8("{}".encode("utf-16")), as_utf8(b"{}")
    (b'{}', b'{}')
    """
    return data.decode("utf-16", "replace").lstrip("\ufeff").encode("utf-8", "replace") if is_utf16(data) else data
