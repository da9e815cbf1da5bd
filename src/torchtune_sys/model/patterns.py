"""Regular expressions that are compiled at first use. Most runs need few of them, and compiling all takes longer than judging."""

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
    """Compile as ``re.compile``, but that a fault in ``text`` is found when it is used: tests use each one.

    >>> digits = pattern("([0-9]+)")
    >>> digits.sub("n", "a1b22"), digits.fullmatch("12")[1], digits.groups
    ('anbn', '12', 1)
    """
    return cast("re.Pattern[str]", _Lazy(text, flags))


_LEAST = 4
"""Letters of a word that few texts have by chance."""
_STEP = pattern(
    r"\\(?P<escaped>.)|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<group>\((?:\?:)?)|(?P<end>\))|(?P<other>\|)|(?P<repeated>[*+?]|\{\d*,?\d*\})|[.^$]|(?P<letter>.)",
    re.DOTALL,
)


def words_of(text: str) -> tuple[str, ...]:
    """Return words of which a text has one wherever the pattern matches, so that the pattern need not be compiled and tried without; ``()`` where
    that cannot be told: it ignores case, or one of its alternatives holds no word of four letters outside of groups.

    >>> words_of(r"cuda \\d+ failed|a{2,3}driver v?ersion\\.x"), words_of("(?i)failed"), words_of("(?:failed|lost) at|ab")
    ((' failed', 'ersion.x'), (), ())
    """
    if re.match(r"\(\?[a-zA-Z]+\)", text):
        return ()
    alternatives: list[list[str]] = [[""]]  # each with its runs of letters
    depth = 0
    for step in _STEP.finditer(text):
        runs = alternatives[-1]
        if step["group"] or step["end"]:
            depth += 1 if step["group"] else -1
        elif depth:
            continue
        elif step["other"]:
            alternatives.append([""])
            continue
        elif (letter := step["letter"] or step["escaped"] or "") and (step["letter"] or not letter.isalnum()):
            runs[-1] += letter
            continue
        elif letter in "xuUN0123456789" and letter:  # a character by its number
            return ()
        elif step["repeated"] and step["repeated"] != "+":
            runs[-1] = runs[-1][:-1]
        runs.append("")
    longest = tuple(max(runs, key=len) for runs in alternatives)
    return longest if min(map(len, longest)) >= _LEAST else ()
