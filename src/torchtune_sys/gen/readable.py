"""A regular expression as a person reads it: each alternative's words, with … for what may stand there."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_ANY = "…"
_SHOWN = 12
_VARIANTS = 6
"""Inner alternatives that are written out; where there are more, … stands for them."""


def alternatives(pattern: str) -> tuple[str, ...]:
    """Return what ``pattern`` looks for, each once, in its order; of an alternative with many forms the first.

    >>> alternatives(r"clock (?:jumped|went) backwards?|[Ss]ignal \\d+ \\(SIGILL\\)|(?i)^Bad.{0,9}luck$|error 71[48]")
    ('clock jumped backward', 'clock went backward', 'Signal … (SIGILL)', 'Bad…luck', 'error 714', 'error 718')
    >>> alternatives(r"^(?=.{0,120}keyctl)")
    ('…keyctl',)
    """
    flagless = re.sub(r"\(\?[a-z]+\)", "", pattern)
    parsed = [*_parser.parse(flagless)]
    # What all alternatives begin with stands before them once it is parsed.
    *before, (kind, value) = parsed
    branches = [[*before, *branch] for branch in value[1]] if str(kind) == "BRANCH" else [parsed]
    found = (_tidied(words) for branch in branches for words in _words(branch)[:_SHOWN])
    shown = tuple(dict.fromkeys(words for words in found if words.strip(f" {_ANY}")))
    return alternatives(pattern.replace("(?=", "(?:")) if not shown and "(?=" in pattern else shown  # all of it looks ahead


def _tidied(words: str) -> str:
    return re.sub(rf" *(?:{_ANY} *)+{_ANY}", _ANY, " ".join(words.split()))


def _words(nodes: Iterable[Any]) -> list[str]:
    """Return the texts that a sequence of nodes stands for."""
    parts = [_node(str(kind), value) for kind, value in nodes]
    return ["".join(chosen) for chosen in product(*parts)]


def _node(kind: str, value: Any) -> list[str]:
    match kind:
        case "LITERAL":
            return [chr(value)]
        case "IN":
            return _set(value)
        case "ANY" | "NOT_LITERAL":
            return [_ANY]
        case "SUBPATTERN" | "ATOMIC_GROUP":
            return _few(_words(value[-1] if kind == "SUBPATTERN" else value))
        case "BRANCH":
            return [words for branch in value[1] for words in _few(_words(branch))]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return list(_repeated(*value))
        case _:  # an anchor, what stands before or after
            return [""]


def _set(members: list[Any]) -> list[str]:
    """Return the signs of a set, of a letter's two cases the first."""
    kinds = [str(kind) for kind, _ in members]
    if set(kinds) == {"LITERAL"}:
        signs = {chr(sign).casefold(): chr(sign) for _, sign in reversed(members)}
        return _few([*reversed(signs.values())])
    return [" " if kinds == ["CATEGORY"] and str(members[0][1]) == "CATEGORY_SPACE" else _ANY]


def _repeated(least: int, most: int, nodes: Any) -> Iterator[str]:
    once = _few(_words(nodes))
    if any(_ANY in words for words in once) and int(most) > 1:
        yield _ANY
    elif least == 0:
        yield ""
    else:
        yield from once


def _few(words: list[str]) -> list[str]:
    return words if len(words) <= _VARIANTS else [_ANY]
