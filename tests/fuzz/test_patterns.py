"""No pattern by which strangers' texts are read divides a run of one sign in every way: (?:\\S+\\W){0,6}, (?:<a+)+ take time without end on a line of 40 signs."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import torchtune_sys
from torchtune_sys.diagnosis import told_states
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.sentences import NEAR
from torchtune_sys.knowledge.stated_words import filled

IN_RE = sys.version_info >= (3, 11)
PARSER: Any = importlib.import_module("re._parser" if IN_RE else "sre_parse")
KINDS: Any = importlib.import_module("re._constants" if IN_RE else "sre_constants")
REPEATS = (KINDS.MAX_REPEAT, KINDS.MIN_REPEAT)
NOTHING = (KINDS.ASSERT, KINDS.ASSERT_NOT, KINDS.AT)
SIGNS = [chr(number) for number in range(32, 127)]
PACKAGES = ("diagnosis", "evidence", "formats", "host", "knowledge", "fleet", "preflight", "probes")


def fits(item: tuple[Any, Any], sign: str) -> bool:
    """Return whether an item of a pattern can be this one sign."""
    kind, value = item
    if kind is KINDS.IN:
        return any(fits(part, sign) for part in value) != (value[0][0] is KINDS.NEGATE)
    if kind is KINDS.CATEGORY:
        *_, negated, name = f"_{value}".split("_")
        known = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[name]
        return bool(re.match(known, sign)) != (negated == "NOT")
    if kind is KINDS.RANGE:
        return bool(value[0] <= ord(sign) <= value[1])
    return (
        kind is KINDS.ANY or (kind is KINDS.LITERAL and value == ord(sign)) or (kind is KINDS.NOT_LITERAL and value != ord(sign))
    )


def items(pattern: Any) -> Iterator[tuple[Any, Any]]:
    for kind, value in pattern:
        if kind is KINDS.SUBPATTERN:
            yield from items(value[3])
        elif kind not in NOTHING:
            yield kind, value


def divided(pattern: Any) -> Iterator[Any]:
    """Yield the repeats whose body is of any length, and of one sign, if that is repeated."""
    for kind, value in pattern:
        if kind in REPEATS:
            body = [*items(value[2])]
            grows = [part[2][0] for what, part in body if what in REPEATS and part[1] > part[0] + 3 and len(part[2]) == 1]
            must = [part if part[0] not in REPEATS else part[1][2][0] for part in body if part[0] not in REPEATS or part[1][0]]
            if value[1] > 2 and any(all(fits(part, sign) for part in (each, *must)) for each in grows for sign in SIGNS):
                yield value
            yield from divided(value[2])
        elif kind is KINDS.SUBPATTERN:
            yield from divided(value[3])
        elif kind is KINDS.BRANCH:
            yield from (found for branch in value[1] for found in divided(branch))
        elif kind in NOTHING[:2]:
            yield from divided(value[1])


def is_divided(pattern: str) -> bool:
    return any(divided(PARSER.parse(pattern)))


@pytest.mark.parametrize(
    "pattern", [r"(?:\S+\W){0,6}x", r"(?:[<>]=?\S{1,60})+x", "(?:a+)+x", r"(?:[^\w.]{1,3}[\w/%.'+-]+){0,8}?x", "(?:(a*)b?)*c"]
)
def test_such_patterns_are_known(pattern: str) -> None:
    assert is_divided(pattern)


@pytest.mark.parametrize("pattern", [r"(?:\S+ ){0,6}x", "(?:the |my )*x", r"(?:\d{1,3}\.){3}x", r"(?:a b+ )*"])
def test_others_are_not(pattern: str) -> None:
    assert not is_divided(pattern)


@pytest.mark.parametrize("table", ["sentences", "operations", "stated_causes", "told_states"])
def test_no_row_of_a_table_is_such_a_pattern(table: str) -> None:
    words = {"pattern", "also", "unless", "subject", "fault", "help", "setting", "claim", "state"}
    rows = [row[column] for row in tables.rows(table) for column in words & set(row)]
    rows = [row if table == "sentences" else filled(row) for row in rows]
    assert [part for row in rows for part in row.split(" && ") if is_divided(part.removeprefix(NEAR))] == []
    assert not [row.causes for row in told_states._rows() if is_divided(row.words.pattern)]


def test_no_pattern_of_a_module_is() -> None:
    found = {}
    for module in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys."):
        if module.name.split(".")[1] in PACKAGES and not module.name.endswith("child"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(text := getattr(value, "pattern", None), str):
                    found[f"{module.name}.{name}"] = text
    assert len(found) > 300
    assert [name for name, text in found.items() if is_divided(text)] == []
