"""How the values of one fact spread over hosts: the usual value, the values of groups, and the odd ones."""

from __future__ import annotations

import re

import msgspec

from torchtune_sys.fleet.facts_file import MISSING
from torchtune_sys.model.values import Why

NOT_THERE = b"null"
UNSEEN = frozenset(f'{{"{MISSING}":"{why.value}"}}'.encode() for why in Why if why not in (Why.ABSENT, Why.NOT_SUPPORTED))
"""Values that say that nobody could look. *absent* and *not-supported* are no such values: there it was looked."""
BROKEN = frozenset(f'{{"{MISSING}":"{why.value}"}}'.encode() for why in (Why.CRASHED, Why.FAILED, Why.TIMEOUT, Why.UNPARSED))
"""Of these, what a host does differently; the others depend on who looks, and from where."""
CLOSED = frozenset(f'{{"{MISSING}":"{why.value}"}}'.encode() for why in (Why.DENIED, Why.HIDDEN))
"""Of these, what depends on who looks, and from where, alone."""
_QUANTITY = re.compile(
    r"_(?:bytes|kib|mib|khz|mts|celsius)\Z|^limits\.limits\[nproc\]|^sysctl\.settings\[[^\]]*\]\.running\Z|\.inodes\Z"
)
_OF_FILES = "document."
"""What is told of the files, not of the hosts: those of one name are no group of hosts."""
_ALIKE = 1.01
"""Quantities within a hundredth are alike, where hosts do not have them exactly alike: what is left of the same memory differs by firmware."""
_EXACT_SHARE = 0.8
_FROM = 4096
"""Smaller numbers are settings, however they spread."""


class Spread(msgspec.Struct, frozen=True):
    usual: bytes | None
    """None where there is no usual value."""
    groups: tuple[bytes, ...]
    """Values that many hosts share, more than one of them; empty where one is usual."""
    alike: dict[bytes, bytes]
    """Values that stand for another one, to which they are alike."""
    various: int
    """How many values there are, where nearly each host has its own; else 0."""


def spread(fact: str, counts: dict[bytes, int]) -> Spread:
    """Return the spread of ``counts``: value → hosts, those unseen left out, in the order of the first host that has each."""
    alike = _binned(fact, counts)
    merged: dict[bytes, int] = {}
    for value, count in counts.items():
        merged[alike.get(value, value)] = merged.get(alike.get(value, value), 0) + count
    total = sum(merged.values())
    usual, top = max(merged.items(), key=lambda item: item[1])
    many = tuple(value for value, count in merged.items() if _is_group(count, total, top) and not fact.startswith(_OF_FILES))
    if len(many) > 1:
        return Spread(None, many, alike, 0)
    if 2 * top <= total and len(merged) > 2 and 2 * len(merged) > total:
        return Spread(None, (), alike, len(merged))
    return Spread(usual, (), alike, 0)


def _is_group(count: int, total: int, top: int) -> bool:
    """Whether so many hosts with one value are no oddity: a fifth of all, or where nothing is usual as many as others."""
    return count > 1 and (5 * count >= total or (2 * top < total and 4 * count >= top))


def _binned(fact: str, counts: dict[bytes, int]) -> dict[bytes, bytes]:
    """Of a quantity that spreads by nature: each value → the most frequent one that it is alike to."""
    if len(counts) < 2 or not _QUANTITY.search(fact) or max(counts.values()) >= _EXACT_SHARE * sum(counts.values()):
        return {}
    numbers = {value: number for value in counts if (number := _number(value)) is not None and number >= _FROM}
    alike: dict[bytes, bytes] = {}
    run: list[bytes] = []
    ordered = sorted(numbers, key=lambda value: numbers[value])
    for value, after in zip(ordered, [*ordered[1:], None], strict=False):
        run.append(value)
        if after is None or numbers[after] > numbers[value] * _ALIKE:
            best = max(run, key=lambda item: counts[item])
            alike.update((item, best) for item in run if item != best)
            run = []
    return alike


def _number(value: bytes) -> float | None:
    try:
        return float(value.strip(b'"'))
    except ValueError:
        return None


def are_alike(fact: str, one: bytes, other: bytes) -> bool:
    """Return whether two hosts' values are one but for what spreads by nature."""
    return one == other or bool(_binned(fact, {one: 1, other: 1}))
