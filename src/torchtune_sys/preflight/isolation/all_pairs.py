"""Test every pair, for few units."""

from __future__ import annotations

from collections.abc import Sequence

from torchtune_sys.preflight.isolation.progress import Progress, Steps
from torchtune_sys.preflight.isolation.shared_parts import Cut, across, cut_off, cuts, members
from torchtune_sys.preflight.isolation.values import Group, Pair, at_once, pair

_PASSES_OF = 8
"""Of so many others, a bad unit may once have passed with one: tests miss."""


def every_pair(known: Progress) -> Steps[bool]:
    """Name units that fail with everybody, and links that fail again by themselves; everybody else together in the same round."""
    bad: set[Pair] = set()
    for groups in round_robin(known.left()):
        failed = yield "pairs", groups
        bad |= {pair(group[0], group[1]) for group, is_bad in zip(groups, failed, strict=True) if is_bad}
    if len(bad) == len(known.left()) * (len(known.left()) - 1) // 2:  # it lies in what they have in common, or in the test
        known.is_unexplained = True
        known.suspects |= {*known.left()}
        return True
    nodes = failing_with_all(known.left(), bad)
    for unit in nodes:
        known.accuse_node(unit)
    failing = {each for each in bad if not {*nodes} & {*each}}
    found = cuts(known, failing)
    if found:
        yield from _cut(known, found)
    return (yield from _each_again(known, sorted(failing - known.bad_pairs)))


def _each_again(known: Progress, links: Sequence[Pair]) -> Steps[bool]:
    """Test each link by itself, as many at once as share no unit; in the last round everybody else together, too."""
    while True:
        now = at_once(links)
        linked = {end for each in [*links, *known.bad_pairs] for end in each}
        rest = tuple(unit for unit in known.left() if unit not in linked)
        is_last = len(now) == len(links)
        groups = [*now, rest] if is_last and len(rest) > 1 else now
        if not groups:
            return True
        failed = yield "each link by itself, and everybody else", groups
        known.bad_pairs |= {(group[0], group[1]) for group, is_bad in zip(now, failed, strict=False) if is_bad}
        links = [each for each in links if each not in now]
        if is_last:
            return _is_explained(known, rest, groups[-1] == rest and failed[-1])


def _cut(known: Progress, found: list[Cut]) -> Steps[None]:
    """Parts between which every pair failed: one pairing of each two again, then everybody without the part that is cut off, or without either."""
    again: dict[Cut, list[Pair]] = {cut: [*zip(members(known, cut[0]), members(known, cut[1]), strict=False)] for cut in found}
    waiting = [each for pairs in again.values() for each in pairs]
    failed: dict[Pair, bool] = {}
    while waiting:
        now: list[Pair] = []
        for each in waiting:
            if not {*each} & {unit for group in now for unit in group}:
                now.append(each)
        waiting = [each for each in waiting if each not in now]
        failed.update(zip(now, (yield "pairs between two parts", [*now]), strict=True))
    sure = [cut for cut, pairs in again.items() if all(failed[each] for each in pairs)]
    off = cut_off(known, sure)
    left_out = [{*off}] if off else []
    left_out += [{part} for cut in sure if not {*cut} & {*off} for part in cut]
    for parts in left_out:
        rest = tuple(unit for unit in known.left() if known.home.get(unit) not in parts)
        if len(rest) > 1 and len(left_out) < 3 and (yield "everybody else", [rest])[0]:
            known.is_unexplained = True
            known.suspects |= {*rest}
    known.bad_pairs |= {way for cut in sure for way in across(known, cut)}


def _is_explained(known: Progress, rest: Group, fails: bool) -> bool:
    if fails and not known.bad_nodes and not known.bad_pairs:
        known.is_only_at_scale = True
    elif fails:
        known.is_unexplained = True
        known.suspects |= {*rest}
    return True


def failing_with_all(units: Sequence[int], bad: set[Pair]) -> list[int]:
    """Return the units that fail with everybody who is left, the worst first. Two who fail together are a link, as nobody says which of them it is.

    >>> failing_with_all(range(5), {(0, 1), (0, 2), (0, 3), (0, 4), (1, 2)}), failing_with_all(range(4), {(0, 1), (0, 2)})
    ([0], [])
    """
    found: list[int] = []
    left = list(units)
    while len(left) > 2:
        failures = {unit: sum(pair(unit, other) in bad for other in left if other != unit) for unit in left}
        worst = max(left, key=lambda unit: failures[unit])
        others = len(left) - 1
        if failures[worst] < others - others // _PASSES_OF or all(count == others for count in failures.values()):
            break
        found.append(worst)
        left.remove(worst)
    return found


def round_robin(units: Sequence[int]) -> list[list[Group]]:
    """Return rounds of disjoint pairs, each pair once.

    >>> round_robin([0, 1, 2, 3])
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    >>> [len(round_robin(range(count))) for count in (2, 3, 16)]
    [1, 3, 15]
    """
    ring: list[int | None] = [*units, *([None] if len(units) % 2 else [])]
    count = len(ring)
    rounds: list[list[Group]] = []
    for _ in range(count - 1):
        pairs = ((ring[at], ring[count - 1 - at]) for at in range(count // 2))
        rounds.append([pair(one, two) for one, two in pairs if one is not None and two is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds
