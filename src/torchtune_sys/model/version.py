"""Dotted versions as tuples of numbers: drivers, CUDA, NCCL, kernels."""

from __future__ import annotations

import re

Version = tuple[int, ...]

_NUMBERS = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_DIGITS = 19
"""Of a part; int() refuses more than 4,300, and no version has more than a date and a time in it."""


def version(text: str) -> Version:
    """Return the leading dotted number in ``text``, as a tuple; ``()`` where there is none.

    >>> version("580.65.06")
    (580, 65, 6)
    >>> version("2.15.0+cu132")
    (2, 15, 0)
    >>> version("6.8.0-45-generic")
    (6, 8, 0)
    >>> version("9" * 5000) == (10**19 - 1,)
    True
    """
    found = _NUMBERS.search(text)
    return tuple(int(part[:_DIGITS]) for part in found.group().split(".")) if found else ()


def show(numbers: Version) -> str:
    """Return the version as people write it: ``show((12, 8)) == "12.8"``."""
    return ".".join(str(number) for number in numbers)
