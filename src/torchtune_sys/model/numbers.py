"""Parse numbers in untrusted text, and say how many there are of a thing."""

from __future__ import annotations


def natural(text: str, digits: int = 19) -> int | None:
    """Return the number that ``text`` is in ASCII digits, at most so many; None for anything else.

    ``isdigit`` alone is true of characters that ``int`` refuses, and ``int`` refuses more than 4,300 digits.

    >>> natural("007"), natural("²"), natural("-1"), natural(""), natural("9" * 5000)
    (7, None, None, None, None)
    """
    return int(text) if 0 < len(text) <= digits and text.isascii() and text.isdigit() else None


def counted(count: int, thing: str, things: str = "") -> str:
    """Return so many of a thing, in the singular where it is one.

    >>> counted(1, "more line"), counted(1200, "more line"), counted(2, "process", "processes")
    ('1 more line', '1,200 more lines', '2 processes')
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
