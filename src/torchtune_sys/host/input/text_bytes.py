"""Tell text from other bytes, and take UTF-16, which PowerShell's ``>`` writes, on WSL too."""

from __future__ import annotations

from torchtune_sys.model.patterns import pattern

_SAMPLE = 1 << 16
_STRANGE = pattern("[\ufffd\x01-\x06\x0e-\x1a\x1c-\x1f]|\x00+")
"""What few programs print: not blanks, line breaks, the bell, a step back, nor the escapes of a terminal. Zeros do occur: torch ends the message
of a crashed DataLoader worker with one, and a log that is truncated under its writer begins with as many as it had bytes."""
_FEW = 3

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


def is_binary(data: bytes) -> bool:
    r"""Return whether it is something else than text, by its beginning.

    >>> is_binary(b"ERROR: Unexpected bus error\n\0"), is_binary(b"\0" * 9000 + b"step 5"), is_binary(b"\x7fELF\2\1\1\0\0\3\0>\0\1"), is_binary(b"\0" * 9)
    (False, False, True, True)
    """
    sample = data.lstrip(b"\0")[:_SAMPLE].decode("utf-8", "replace")
    return len(_STRANGE.findall(sample)) > max(len(sample) // 20, _FEW) or bool(data and not sample)
