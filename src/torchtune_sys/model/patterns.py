"""Regular expressions that are compiled when they are first used: most runs need few of them, and compiling all takes longer than judging."""

from __future__ import annotations

import re
import threading
from typing import Any, cast

_COMPILING = threading.Lock()


class _Lazy:
    """Stands for a compiled pattern, and has its attributes once one of them is asked for."""

    def __init__(self, text: str, flags: int) -> None:
        self._asked = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask before there is anything
            raise AttributeError(name)
        with _COMPILING:  # probes run in threads, and each would do the same work
            made = re.compile(*self._asked)
        for each in (
            "match",
            "fullmatch",
            "search",
            "sub",
            "subn",
            "split",
            "findall",
            "finditer",
            "pattern",
            "groups",
            "groupindex",
            "flags",
        ):
            setattr(self, each, getattr(made, each))
        return getattr(made, name)


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """As ``re.compile``, but that a fault in ``text`` is found when it is used: tests use each one.

    >>> digits = pattern("([0-9]+)")
    >>> digits.sub("n", "a1b22"), digits.fullmatch("12")[1], digits.groups
    ('anbn', '12', 1)
    """
    return cast("re.Pattern[str]", _Lazy(text, flags))
