"""The inputs, the results of a round, and the verdict of an isolation."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

Group = tuple[int, ...]
"""Units that are tested together."""
Pair = tuple[int, int]
"""Two units, the lower first."""
ROUNDS_AT_MOST = 64
ALL_PAIRS = 16
"""Up to so many units each pair is tested."""


def pair(first: int, second: int) -> Pair:
    """Return the name of a link between two units."""
    return (first, second) if first < second else (second, first)


class Vote(str, enum.Enum):
    """When a group counts as failed that was tested several times."""

    ANY = "any"
    """One failure is enough: tests miss faults."""
    MAJORITY = "majority"
    """More than half of them: tests also fail for nothing."""


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """Units behind one part: a leaf switch, a rail."""

    kind: str
    name: str
    units: tuple[int, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How much is spent."""

    rounds: int = ROUNDS_AT_MOST
    """Beyond, what is left are suspects. Repeats of a round count."""
    repeats: int = 1
    vote: Vote = Vote.ANY
    passes: int = 3
    """How often bad nodes are looked for, where tests are repeated since they miss."""
    seed: int = 0


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Disjoint groups that are tested at the same time."""

    number: int
    purpose: str
    groups: tuple[Group, ...]
    rails: tuple[tuple[int, ...], ...] = ()
    """The rails that each group uses; empty where all use all of them."""


class RoundEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one round showed."""

    number: int
    purpose: str
    groups: int
    units: int
    failed: tuple[Group, ...]


class Outcome(str, enum.Enum):
    """How an isolation ended."""

    WELL = "well"
    """All units together passed."""
    NAMED = "named"
    """What is named failed again by itself, and everybody else passes without it."""
    ONLY_AT_SCALE = "fails-only-at-scale"
    """No smaller group fails: no unit and no link is to blame."""
    SUSPECTS = "suspects"
    """Too many faults, too few rounds, or failures that did not come again."""


class IsolationVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is bad."""

    outcome: Outcome
    nodes: tuple[int, ...] = ()
    pairs: tuple[Pair, ...] = ()
    domains: tuple[Domain, ...] = ()
    """Of which every unit is bad; their units stand in ``nodes``, too."""
    between: tuple[tuple[Domain, Domain], ...] = ()
    """Two parts of which no unit of one passes with any of the other; these pairs do not stand in ``pairs``."""
    rails: tuple[int, ...] = ()
    """Rails on which no two units pass, while the others are well."""
    on: tuple[int, ...] = ()
    """The rails on which ``nodes`` and ``pairs`` fail; empty where on all of them."""
    suspects: tuple[int, ...] = ()
    """Among these is what could not be named."""
    why: str = ""
    """Of suspects and of what fails only at scale."""
    rounds: tuple[RoundEvidence, ...] = ()


def of_units(verdict: IsolationVerdict, names: Sequence[int]) -> IsolationVerdict:
    """Return the verdict on units that are called ``names``: 0 is the first of them.

    >>> of_units(IsolationVerdict(outcome=Outcome.NAMED, nodes=(1,), pairs=((0, 2),)), [4, 7, 9]).pairs
    ((4, 9),)
    """

    def renamed(domain: Domain) -> Domain:
        return msgspec.structs.replace(domain, units=tuple(names[unit] for unit in domain.units))

    return msgspec.structs.replace(
        verdict,
        domains=tuple(map(renamed, verdict.domains)),
        between=tuple((renamed(one), renamed(other)) for one, other in verdict.between),
        nodes=tuple(names[unit] for unit in verdict.nodes),
        pairs=tuple(pair(names[one], names[other]) for one, other in verdict.pairs),
        suspects=tuple(names[unit] for unit in verdict.suspects),
        rounds=tuple(
            msgspec.structs.replace(each, failed=tuple(tuple(names[unit] for unit in group) for group in each.failed))
            for each in verdict.rounds
        ),
    )


def at_once(links: Sequence[Pair]) -> list[Group]:
    """Return the links that can be tested at the same time, by their order: no unit stands in two of them."""
    found: list[Group] = []
    used: set[int] = set()
    for each in links:
        if not used & {*each}:
            found.append(each)
            used |= {*each}
    return found


def largest(groups: Sequence[Group]) -> int:
    """Return the units of the largest group; 0 where there is none."""
    return max(map(len, groups), default=0)
