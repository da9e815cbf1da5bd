"""Bad nodes in four rounds: pairs; members of failing pairs, each with a proven partner; what failed, with another one; everybody else."""

from __future__ import annotations

from torchtune_sys.preflight.isolation.progress import Progress, Steps
from torchtune_sys.preflight.isolation.shared_parts import find_between, is_whole
from torchtune_sys.preflight.isolation.values import Group, Pair, at_once, pair

_PAIRINGS = 3
"""Pairings that are tried until pairs pass."""
_TURNS = 8
"""Tests of one suspect."""


def find_nodes(known: Progress) -> Steps[bool]:
    """Name bad units, and links that a pairing happened to hold. Whether anything was named."""
    groups: list[Group] = []
    failed: list[bool] = []
    for _ in range(_PAIRINGS):
        groups = pairing(known)
        failed = yield "pairs", groups
        if not is_whole(failed):  # else the few that passed are more likely missed than proven
            break
    else:
        known.suspects |= {*known.left()}
        return False
    known.sound = {unit for group, bad in zip(groups, failed, strict=True) if not bad for unit in group}
    doubtful = [group for group, bad in zip(groups, failed, strict=True) if bad]
    suspects = _Suspects(known, doubtful)
    yield from suspects.tested()
    links = suspects.links()
    is_between = yield from find_between(known, links)
    pairs = yield from confirmed(known, [each for each in links if each not in known.bad_pairs])
    return bool(suspects.accused or pairs or is_between)


def pairing(known: Progress) -> list[Group]:
    """Return every unit in one pair, or in the one triple; no pair behind one leaf where none holds half of all."""
    units = known.shuffled(known.left())
    if known.domains:
        order = known.shuffled(range(len(known.domains)))
        units.sort(key=lambda unit: order[known.home[unit]] if unit in known.home else len(order))
    half = len(units) // 2
    found: list[Group] = [*zip(units[:half], units[half : 2 * half], strict=True)]
    if len(units) % 2 and found:
        found[-1] = (*found[-1], units[-1])
    return found


class _Suspects:
    """Members of groups that failed. Two failures with proven partners accuse; one pass clears where a mate explains the failure, else two."""

    def __init__(self, known: Progress, groups: list[Group]) -> None:
        self._known, self._groups = known, groups
        self._group = {unit: group for group in groups for unit in group}
        self._failed: dict[int, set[int]] = {unit: set() for unit in self._group}
        self._passed: dict[int, set[int]] = {unit: set() for unit in self._group}
        self.accused: set[int] = set()
        self._cleared: set[int] = set()
        self._left_over: set[int] = set()
        """Of a triple, where the proven are too few for all in the first turn: what its mates passed since counts as its first failure."""

    def tested(self) -> Steps[None]:
        """Until each is accused or cleared, or nothing more can be told."""
        for turn in range(_TURNS):
            open_ = [unit for unit in self._group if not self._is_settled(unit)]
            refused = {unit: self._failed[unit] | self._passed[unit] | {*self._group[unit]} for unit in open_}
            tests = self._known.partners(open_, sorted(self._known.sound - {*open_}), refused)
            if not tests:
                break
            if turn == 0:
                self._left_over = {*open_} - {unit for unit, _ in tests}
            failed = yield "a suspect with a proven partner" if turn == 0 else "again, with another partner", [*tests]
            for (unit, partner), bad in zip(tests, failed, strict=True):
                (self._failed if bad else self._passed)[unit].add(partner)
            for unit, _partner in tests:
                self._settle(unit)
        self._known.suspects |= {unit for unit in self._group if not self._is_settled(unit)} - self._known.sound

    def _is_settled(self, unit: int) -> bool:
        if unit in self.accused:
            return True
        if unit not in self._cleared:
            return False
        mates = [mate for mate in self._group[unit] if mate != unit]
        is_explained = any(mate in self.accused or self._failed[mate] for mate in mates)
        return bool(is_explained or self._is_untested(mates) or len(self._passed[unit]) > 1)

    def _is_untested(self, units: list[int]) -> bool:
        return any(not self._failed[unit] and not self._passed[unit] for unit in units)

    def _settle(self, unit: int) -> None:
        failures, passes = len(self._failed[unit]), len(self._passed[unit])
        mates = [mate for mate in self._group[unit] if mate != unit]
        is_retold = failures == 1 and unit in self._left_over and self._cleared.issuperset(mates)
        is_bad = failures > max(1, passes) or (is_retold and not passes)
        if is_bad and not self._known.is_one_way(unit, self._failed[unit]):
            self.accused.add(unit)
            self._known.accuse_node(unit)
            self._known.failed_with[unit] = self._failed[unit] | (({*self._group[unit]} - {unit}) if mates[1:] == [] else set())
        elif passes > failures:
            self._cleared.add(unit)
            self._known.sound.add(unit)

    def links(self) -> list[Pair]:
        """Return what failed, though both ends pass with others."""
        found = {pair(unit, other) for unit in self._cleared for other in self._failed[unit]}
        for group in self._groups:
            if self._cleared.issuperset(group):
                found |= {pair(first, second) for first in group for second in group if first < second}
        return sorted(each for each in found if not self._known.bad_nodes & {*each})


def find_cleared(known: Progress) -> Steps[bool]:
    """Ask bad nodes with two partners more where links are bad, too: a node may have failed for its own links alone. One that passes with both is cleared, and
    what it failed with are links."""
    ends = {end for link in known.bad_pairs for end in link}
    asked = sorted({*known.failed_with} & known.bad_nodes) if ends else []
    for _ in range(2):
        tests = known.partners(asked, [unit for unit in known.left() if unit not in ends], known.failed_with)
        failed = (yield "a bad node with another partner, as links are bad", [*tests]) if tests else []
        asked = [unit for (unit, _partner), bad in zip(tests, failed, strict=True) if not bad]
    for unit in asked:
        known.clear_node(unit)
    links = {pair(unit, other) for unit in asked for other in known.failed_with[unit] if other not in known.bad_nodes}
    yield from confirmed(known, sorted(links))
    return bool(asked)


def confirmed(known: Progress, candidates: list[Pair]) -> Steps[list[Pair]]:
    """Return the links that fail again by themselves."""
    found: list[Pair] = []
    while candidates:
        now = at_once(candidates)
        failed = yield "a pair by itself", now
        candidates = [each for each in candidates if each not in now]
        found += [(group[0], group[1]) for group, bad in zip(now, failed, strict=True) if bad]
    known.bad_pairs |= {*found}
    return found
