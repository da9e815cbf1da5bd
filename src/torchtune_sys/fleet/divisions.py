"""Hosts that fall into groups: facts that split them the same way make one division."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from torchtune_sys.fleet.spread import UNSEEN, Spread

_SAME_SPLIT = 0.9
"""Two facts belong to one division where so large a part of the hosts falls the same way by both."""


class Divided(msgspec.Struct, frozen=True):
    """One division."""

    facts: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    """Hosts, the largest group first."""
    values: tuple[dict[str, bytes], ...]
    """Of each group, what it agrees upon."""
    member: dict[int, int]
    """Host → the group that it is most like."""


def divide(found: Mapping[str, tuple[Spread, dict[int, bytes]]], hosts: int) -> list[Divided]:
    """Return the divisions, that of the most facts first."""
    gathered: list[list[str]] = []
    exact: dict[tuple[int, ...], list[str]] = {}
    for fact, (_, values) in found.items():
        split = _split(found[fact][0], values)
        same = exact.get(split)
        if same is None:
            same = next((facts for facts in gathered if _falls_alike(found, facts[0], fact)), None)
            if same is None:
                gathered.append(same := [])
            exact[split] = same
        same.append(fact)
    return [_divided(tuple(facts), found) for facts in sorted(gathered, key=lambda facts: -len(facts))]


def _split(one: Spread, values: Mapping[int, bytes]) -> tuple[int, ...]:
    """Return the same for two facts by which all hosts fall the same way."""
    numbers: dict[bytes, int] = {}
    return tuple(
        numbers.setdefault(one.alike.get(value, value), len(numbers)) * 1_000_003 + host for host, value in sorted(values.items())
    )


def _falls_alike(found: Mapping[str, tuple[Spread, dict[int, bytes]]], one: str, other: str) -> bool:
    """Whether nearly all hosts with one value of the first fact have one value of the second, and the other way round."""
    (first, mine), (second, theirs) = found[one], found[other]
    pairs = Counter(
        (first.alike.get(value, value), second.alike.get(theirs[host], theirs[host]))
        for host, value in mine.items()
        if host in theirs
    )
    total = sum(pairs.values())
    best: dict[tuple[int, bytes], int] = {}
    for (left, right), count in pairs.items():
        best[0, left] = max(best.get((0, left), 0), count)
        best[1, right] = max(best.get((1, right), 0), count)
    kept = [sum(count for (side, _), count in best.items() if side == which) for which in (0, 1)]
    return min(kept) >= _SAME_SPLIT * total


def _divided(facts: tuple[str, ...], found: Mapping[str, tuple[Spread, dict[int, bytes]]]) -> Divided:
    shared: dict[int, tuple[bytes | None, ...]] = {}
    for host in sorted({host for fact in facts for host in found[fact][1]}):
        shared[host] = tuple(_group_value(found[fact], host) for fact in facts)
    counts = Counter(signature for signature in shared.values() if None not in signature)
    least = max(max(counts.values(), default=2) // 4, 2)
    kept = [signature for signature, count in counts.most_common() if count >= least] or [
        signature for signature, _ in Counter(shared.values()).most_common(2)
    ]
    nearest = {signature: _nearest(signature, kept) for signature in set(shared.values())}
    member = {host: nearest[signature] for host, signature in shared.items()}
    groups: list[list[int]] = [[] for _ in kept]
    for host, place in member.items():
        groups[place].append(host)
    values = tuple(
        {
            fact: value if value is not None else _commonest(found[fact], groups[place])
            for fact, value in zip(facts, signature, strict=True)
        }
        for place, signature in enumerate(kept)
    )
    return Divided(facts, tuple(map(tuple, groups)), values, member)


def _group_value(one: tuple[Spread, dict[int, bytes]], host: int) -> bytes | None:
    """Return the value that a group shares; None for an odd one, and where nobody could look."""
    value = one[1].get(host)
    shared = None if value is None else one[0].alike.get(value, value)
    return shared if shared in one[0].groups else None


def _commonest(one: tuple[Spread, dict[int, bytes]], hosts: list[int]) -> bytes:
    counts = Counter(value for host in hosts if (value := one[1].get(host)) is not None and value not in UNSEEN)
    return counts.most_common(1)[0][0] if counts else one[0].groups[0]


def _nearest(signature: tuple[bytes | None, ...], kept: list[tuple[bytes | None, ...]]) -> int:
    """Return the place of the group that agrees in most facts; of several the largest."""
    return max(range(len(kept)), key=lambda place: (sum(a == b for a, b in zip(signature, kept[place], strict=True)), -place))
