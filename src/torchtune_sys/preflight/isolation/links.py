"""Bad links: halving by the bits of a number that each unit draws, then the proof that everything else passes.

At each bit the units with 0 and those with 1 are tested. One that fails holds a bad link, and the search goes on in it. Where both pass, each
bad link has its ends on both sides. So in the end all bad links that are left differ in the same bits, and of a group in which two such bits
are equal, both ends of a link lie in it, or none: each further round halves again. N units take at most 2 ceil(log2 N) - 1 rounds.
"""

from __future__ import annotations

from torchtune_sys.preflight.isolation.progress import Progress, Steps
from torchtune_sys.preflight.isolation.shared_parts import find_between
from torchtune_sys.preflight.isolation.values import Group, Pair, pair

_TRIES = 3
"""Searches in a group that fails, until one ends with a link that fails by itself."""


def find_links(known: Progress, failing: Group | None) -> Steps[bool]:
    """Name links until all other pairs of units have passed together: first in a group that fails, where one is known. False where the search
    does not end at any."""
    group = failing or (yield from _first_failing(known))
    while group is not None:
        found = yield from _named_in(known, group)
        if not found:
            return known.is_only_at_scale or known.is_unexplained
        group = yield from _first_failing(known)
    return True


def _named_in(known: Progress, group: Group) -> Steps[bool]:
    """One or more links in a group that fails; False where there is none, or nothing fails any more."""
    known.largest_pass, known.smallest_failure = 0, len(group) + 1
    for turn in range(_TRIES):
        rest = yield from _link_in(known, group)
        if rest is not None:
            while rest:
                rest = yield from _link_in(known, rest)
            return True
        if turn:
            again = (yield "the same again", [group])[0]
            if not again:
                known.passed.append(frozenset(group))
                return True
            if known.largest_pass < known.smallest_failure:
                known.is_only_at_scale = True
                return False
    known.is_unexplained = True
    known.suspects |= {*group}
    return False


def _link_in(known: Progress, group: Group) -> Steps[Group | None]:
    """Find a link and test it by itself, and the rest of the group beside it. Return the rest where that fails, too, ``()`` where it does not (or
    both ends are of a part that is cut off); None where no link failed by itself."""
    candidate = yield from _searched(known, group)
    if len(candidate) != 2:
        return None
    rest = tuple(unit for unit in group if unit not in candidate)
    failed = yield "the link that was found, and everybody else", [candidate, rest] if len(rest) > 1 else [candidate]
    if not failed[0]:
        return None
    known.bad_pairs.add(pair(*candidate))
    if (yield from find_between(known, [pair(*candidate)])) or len(failed) < 2:
        return ()
    if failed[1]:
        return rest
    known.passed.append(frozenset(rest))
    return ()


def _searched(known: Progress, group: Group) -> Steps[Group]:
    """Return the two units that a bad link joins, if tests miss nothing. Numbers are drawn, so that another search asks other groups."""
    order = known.shuffled(group)
    number = {unit: place for place, unit in enumerate(order)}
    live, differing = order, []
    for bit in range((len(order) - 1).bit_length()):
        if len(live) <= 2:
            break
        halves = [[unit for unit in live if number[unit] >> bit & 1 == side] for side in (0, 1)]
        failing = yield from _failing(halves)
        if failing is None:
            differing.append(bit)
        else:
            live = failing
    for bit in differing[1:]:
        if len(live) <= 2:
            break
        first = differing[0]
        halves = [[unit for unit in live if (number[unit] >> first ^ number[unit] >> bit) & 1 == side] for side in (0, 1)]
        live = (yield from _failing(halves)) or live
    return tuple(live)


def _failing(halves: list[list[int]]) -> Steps[list[int] | None]:
    tried = [half for half in halves if len(half) > 1]
    if not tried:
        return None
    failed = yield "halves", [tuple(half) for half in tried]
    return next((half for half, bad in zip(tried, failed, strict=True) if bad), None)


def _first_failing(known: Progress) -> Steps[Group | None]:
    """Have every two units tested together but those whose link is bad; the first group that fails, None where all pass."""
    while True:
        rounds = _covering(known)
        groups = next((groups for groups in rounds if not _have_passed(known, groups)), None)
        if groups is None:
            return None
        failed = yield "everybody else", groups
        known.passed += [frozenset(group) for group, bad in zip(groups, failed, strict=True) if not bad]
        bad_group = next((group for group, bad in zip(groups, failed, strict=True) if bad), None)
        if bad_group is None:
            continue
        accused = yield from _is_node(known, bad_group)
        if not accused:
            return bad_group


def _have_passed(known: Progress, groups: list[Group]) -> bool:
    return all(any(before.issuperset(group) for before in known.passed) for group in groups)


def _is_node(known: Progress, group: Group) -> Steps[bool]:
    """Whether an end of a named link, new in a group that fails, is bad itself: it is asked with proven partners, once."""
    ends = {end for link in known.bad_pairs for end in link}
    asked = sorted((ends & {*group}) - known.sound_ends)
    partners = [unit for unit in known.left() if unit not in ends]
    refused = {end: {other for link in known.bad_pairs if end in link for other in link} - {end} for end in asked}
    found = False
    for turn in range(2):
        tests = known.partners(asked, partners, refused)
        if not tests:
            break
        failed = yield "an end of the link with a proven partner", [*tests]
        known.sound_ends |= {unit for (unit, _), bad in zip(tests, failed, strict=True) if not bad}
        if turn:
            for (unit, partner), bad in zip(tests, failed, strict=True):
                if bad:
                    known.accuse_node(unit)
                    known.failed_with[unit] = refused[unit] | {partner}
                    found = True
        asked = [unit for (unit, _), bad in zip(tests, failed, strict=True) if bad]
        refused = {unit: refused[unit] | {partner} for unit, partner in tests}
    return found


def _covering(known: Progress) -> list[list[Group]]:
    """Return rounds in which any two units meet whose link is not known to be bad. Only ends of such links need more than one."""
    linked: dict[int, set[int]] = {}
    for first, second in known.bad_pairs:
        linked.setdefault(first, set()).add(second)
        linked.setdefault(second, set()).add(first)
    others = [unit for unit in known.left() if unit not in linked]
    classes = _classes(linked)
    rounds: list[list[Group]] = [[_group(others, ends)] for ends in classes] or [[_group(others, [])]]
    wanted = {
        pair(one, two)
        for place, ends in enumerate(classes)
        for one in ends
        for more in classes[place + 1 :]
        for two in more
        if two not in linked[one]
    }
    while wanted:
        groups = _met(wanted, linked)
        rounds.append(groups)
    return [kept for groups in rounds if (kept := [group for group in groups if len(group) > 1])]


def _group(others: list[int], ends: list[int]) -> Group:
    return tuple(sorted([*others, *ends]))


def _classes(linked: dict[int, set[int]]) -> list[list[int]]:
    """Return ends of bad links, as few classes as are found simply, in which none is linked with another: the most linked first."""
    classes: list[list[int]] = []
    for unit in sorted(linked, key=lambda unit: (-len(linked[unit]), unit)):
        home = next((ends for ends in classes if not linked[unit] & {*ends}), None)
        if home is None:
            classes.append([unit])
        else:
            home.append(unit)
    return classes


def _met(wanted: set[Pair], linked: dict[int, set[int]]) -> list[Group]:
    """Disjoint groups that hold as many of the wanted pairs as is found simply; those are taken out."""
    groups: list[list[int]] = []
    for unit in sorted(linked):
        fits = [group for group in groups if not linked[unit] & {*group}]
        best = max(fits, key=lambda group: sum(pair(unit, other) in wanted for other in group), default=None)
        if best is None or not any(pair(unit, other) in wanted for other in best):
            groups.append([unit])
        else:
            best.append(unit)
    held = {pair(one, two) for group in groups for one in group for two in group if one < two} & wanted
    if not held:  # two units of which one is taken already
        held = {min(wanted)}
        groups = [[*min(wanted)]]
    wanted -= held
    return [tuple(sorted(group)) for group in groups if len(group) > 1]
