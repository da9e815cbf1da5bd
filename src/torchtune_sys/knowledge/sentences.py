"""Sentences by which programs name a fault of the host, in whatever text they stand."""

from __future__ import annotations

import functools
import re

from torchtune_sys.knowledge import tables
from torchtune_sys.model.snapshot import Saying

_WIDTH = 300


@functools.cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], re.Pattern[str] | None, re.Pattern[str] | None, str, str], ...]:
    def compiled(pattern: str) -> re.Pattern[str] | None:
        return re.compile(pattern) if pattern else None

    return tuple(
        (row["rule"], re.compile(row["pattern"]), compiled(row["also"]), compiled(row["unless"]), row["remedy"], row["kind"])
        for row in tables.rows("sentences")
    )


def rules_named() -> frozenset[str]:
    return frozenset(rule for rule, *_ in _patterns())


def said(text: str) -> dict[str, Saying]:
    """By rule id, the first line of ``text`` that says what the rule stands for.

    >>> said("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.")
    {'oom-kill-logged': Saying(line='RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.', remedy='', is_failure=True)}
    >>> said("all is well, and there is no space left on device")
    {}
    """
    found: dict[str, Saying] = {}
    for rule, pattern, also, unless, remedy, kind in _patterns():
        match = None if rule in found else pattern.search(text)
        if match is None or (also and not also.search(text)) or (unless and unless.search(text)):
            continue
        found[rule] = Saying(line=_line(text, match), remedy=remedy, is_failure=kind != "inventory")
    return found


_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):[^\n]*\n(?:[^\n]*\n){1,400}?(?:\[?rank ?\d+\]?:? ?)?"
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Warning)\b[^\n]*)"
)
_DEATHS = re.compile(
    r"(?m)^[^\n]{0,120}?((?:terminate called after throwing|Fatal Python error:|Segmentation fault|Aborted \(core dumped\)|"
    r"CUDA error: |torch\.AcceleratorError: |NCCL error |Bus error \(core dumped\)|Illegal instruction \(core dumped\))[^\n]*)"
)
_MOST = 3


def failures(text: str) -> tuple[str, ...]:
    """The lines in which a program says that it failed, whatever of.

    >>> failures("Traceback (most recent call last):\\n  File \\"a.py\\", line 1\\nfoo.BarError: no way\\n")
    ('foo.BarError: no way',)
    >>> failures("0 errors, RuntimeError is a class, no Traceback")
    ()
    """
    found = [match[1] for pattern in (_TRACEBACK, _DEATHS) for match in pattern.finditer(text)]
    lines = dict.fromkeys(" ".join(line.split()).strip("`> ")[:_WIDTH] for line in found)
    return tuple(lines)[:_MOST]


def _line(text: str, match: re.Match[str]) -> str:
    """The line of the match, from its words on where it is long."""
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    line = " ".join(text[start : end if end >= 0 else None].split()).strip("`> ")
    return line if len(line) <= _WIDTH else " ".join(text[match.start() :][:_WIDTH].split("\n")[0].split())
