"""Sentences by which programs name a fault of the host, in whatever text they stand."""

from __future__ import annotations

import functools
import re

from torchtune_sys.knowledge import tables
from torchtune_sys.model.snapshot import Saying

_WIDTH = 300


@functools.cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], re.Pattern[str] | None, re.Pattern[str] | None, str], ...]:
    def compiled(pattern: str) -> re.Pattern[str] | None:
        return re.compile(pattern) if pattern else None

    return tuple(
        (row["rule"], re.compile(row["pattern"]), compiled(row["also"]), compiled(row["unless"]), row["remedy"])
        for row in tables.rows("sentences")
    )


def rules_named() -> frozenset[str]:
    return frozenset(rule for rule, *_ in _patterns())


def said(text: str) -> dict[str, Saying]:
    """By rule id, the first line of ``text`` that says what the rule stands for.

    >>> said("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.")
    {'oom-kill-logged': Saying(line='RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.', remedy='')}
    >>> said("all is well, and there is no space left on device")
    {}
    """
    found: dict[str, Saying] = {}
    for rule, pattern, also, unless, remedy in _patterns():
        match = None if rule in found else pattern.search(text)
        if match is None or (also and not also.search(text)) or (unless and unless.search(text)):
            continue
        found[rule] = Saying(line=_line(text, match), remedy=remedy)
    return found


def _line(text: str, match: re.Match[str]) -> str:
    """The line of the match, from its words on where it is long."""
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    line = " ".join(text[start : end if end >= 0 else None].split()).strip("`> ")
    return line if len(line) <= _WIDTH else " ".join(text[match.start() :][:_WIDTH].split("\n")[0].split())
