"""The state of an isolation, shared by its steps."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Sequence
from typing import TypeVar

from torchtune_sys.preflight.isolation.values import Domain, Group, Pair

_T = TypeVar("_T")
Asked = tuple[str, list[Group]]
"""Why a round is run, and its groups."""
Steps = Generator[Asked, list[bool], _T]
"""Yields what to test, and is sent which groups failed."""


class Progress:
    """Of one isolation."""

    def __init__(self, units: int, domains: Sequence[Domain], seed: int) -> None:
        self.units = range(units)
        self.random = random.Random(seed)
        self.domains = domains
        self.home: dict[int, int] = {unit: number for number, domain in enumerate(domains) for unit in domain.units}
        """The first part behind which a unit lies: partners come from behind another."""
        self.bad_nodes: set[int] = set()
        self.bad_pairs: set[Pair] = set()
        self.failed_with: dict[int, set[int]] = {}
        """Of each node that was accused with partners of its own, those partners."""
        self.sound: set[int] = set()
        """Units that passed with a partner, since the last time somebody doubted them."""
        self.passed: list[frozenset[int]] = []
        """Large groups that passed: what lies in one need not be tested again."""
        self.sound_ends: set[int] = set()
        """Ends of bad links that are not bad themselves."""
        self.suspects: set[int] = set()
        self.largest_pass = 0
        self.smallest_failure = len(self.units) + 1
        self.is_only_at_scale = False
        self.is_by_rail = False
        """Each group of the round uses the rail of its number."""
        self.on: tuple[int, ...] = ()
        """The rails that are asked; empty for all of them."""
        self.bad_rails: list[int] = []
        self.asked_between: set[Pair] = set()
        """Parts of which it was asked whether all ways between them are bad."""
        self.is_unexplained = False

    def left(self) -> list[int]:
        """Return the units that are not known to be bad."""
        return [unit for unit in self.units if unit not in self.bad_nodes]

    def shuffled(self, units: Iterable[int]) -> list[int]:
        """Return the units in an order that only the seed decides."""
        found = list(units)
        self.random.shuffle(found)
        return found

    def accuse_node(self, unit: int) -> None:
        """Accuse a node: it explains what was said of its links."""
        self.bad_nodes.add(unit)
        self.sound.discard(unit)
        self.bad_pairs = {known for known in self.bad_pairs if unit not in known}

    def clear_node(self, unit: int) -> None:
        """Clear a node that is not bad itself after all."""
        self.bad_nodes.discard(unit)
        self.sound.add(unit)

    def saw(self, groups: Sequence[Group], failed: Sequence[bool]) -> None:
        """Keep what a round showed of sizes: what fails only at scale passes in every smaller group."""
        for group, bad in () if self.is_by_rail else zip(groups, failed, strict=True):
            if bad:
                self.smallest_failure = min(self.smallest_failure, len(group))
            else:
                self.largest_pass = max(self.largest_pass, len(group))

    def partners(self, wanting: Sequence[int], offered: Iterable[int], refused: dict[int, set[int]]) -> list[tuple[int, int]]:
        """Return each unit with a partner of its own, and none that it refuses; as many as there are partners. Where there is one, from behind another part
        than the unit and those that it refuses: two failures with units of one part may be the way to that part."""
        pool = self.shuffled(offered)
        found = []
        for unit in wanting:
            place = self._place(unit, pool, refused.get(unit, set()))
            if place is not None:
                pool[place], pool[-1] = pool[-1], pool[place]
                found.append((unit, pool.pop()))
        return found

    def _place(self, unit: int, pool: Sequence[int], refused: set[int]) -> int | None:
        """Look at the last of the pool: a few are refused or lie behind the same part."""
        own = self.home.get(unit, -1)
        seen = {self.home[other] for other in refused if other in self.home} | {own}
        choices: list[int | None] = [None, None]
        """Behind a part that it has met, and behind its own."""
        for back, other in enumerate(reversed(pool)):
            if other in refused or other == unit:
                continue
            place, home = len(pool) - 1 - back, self.home.get(other, -1)
            if own < 0 or home not in seen:
                return place
            level = int(home == own)
            choices[level] = place if choices[level] is None else choices[level]
            if back > _LOOKED_AT:
                break
        return choices[0] if choices[0] is not None else choices[1]

    def is_one_way(self, unit: int, partners: Iterable[int]) -> bool:
        """Return whether all these partners lie behind one part, other than the unit's, and others could be asked: it may be the way to that part."""
        met = {self.home.get(partner, -1) for partner in partners}
        own = self.home.get(unit, -1)
        if len(met) != 1 or own < 0 or met & {own, -1}:
            return False
        return any(self.home.get(other, -1) not in {own, *met} for other in self.sound if other != unit)


_LOOKED_AT = 64
