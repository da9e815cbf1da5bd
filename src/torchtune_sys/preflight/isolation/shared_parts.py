"""Find faults of what units have in common: leaf switches and rails, on which every pair fails.

A rail is the network cards of one number on all nodes: what local rank 1 of each node uses. A leaf switch that is cut off fails with everybody outside;
of two leaves whose way is cut each still passes with a third.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from torchtune_sys.preflight.isolation.progress import Progress, Steps
from torchtune_sys.preflight.isolation.values import Group, Pair, pair

Cut = Pair
"""Two parts by their numbers, the lower first, of which no two units pass."""
_PASSES_OF = 8
"""Of so many pairs one may pass."""
_PAIRINGS = 2
"""So many pairings in which every pair fails name a rail, or the way between two parts."""


def cuts(known: Progress, bad: Iterable[Pair]) -> list[Cut]:
    """Return the parts between which every pair of units is bad. One pair alone is a link."""
    failing = {*bad}
    seen = {pair(known.home[one], known.home[other]) for one, other in failing if one in known.home and other in known.home}
    return sorted(cut for cut in seen if cut[0] != cut[1] and len(ways := across(known, cut)) > 1 and failing.issuperset(ways))


def across(known: Progress, cut: Cut) -> list[Pair]:
    """Return all pairs of one unit of each part."""
    return [pair(one, other) for one, other in product(members(known, cut[0]), members(known, cut[1]))]


def members(known: Progress, part: int) -> list[int]:
    """Return the units of a part that are not known to be bad themselves."""
    return [unit for unit in known.domains[part].units if unit not in known.bad_nodes and known.home.get(unit) == part]


def cut_off(known: Progress, found: Iterable[Cut]) -> list[int]:
    """Return the parts that are cut from all others. Of two parts alone nobody says which of them it is."""
    beside: dict[int, set[int]] = {}
    for one, other in found:
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    whole = [part for part in range(len(known.domains)) if members(known, part)]
    return [part for part, others in sorted(beside.items()) if len(others) == len(whole) - 1 > 1]


def find_between(known: Progress, links: Iterable[Pair]) -> Steps[bool]:
    """Return whether the ways between the parts of a bad link are all bad: asked once of each two parts."""
    is_found = False
    for cut in sorted({pair(known.home[one], known.home[other]) for one, other in links if {one, other} <= {*known.home}}):
        if cut[0] == cut[1] or cut in known.asked_between or min(len(members(known, part)) for part in cut) < 2:
            continue
        known.asked_between.add(cut)
        for _ in range(_PAIRINGS):
            groups: list[Group] = [*zip(*(known.shuffled(members(known, part)) for part in cut), strict=False)]
            if not is_whole((yield "pairs between two parts", groups)):
                break
        else:
            known.bad_pairs |= {*across(known, cut)}
            is_found = True
    return is_found


def is_whole(failed: list[bool]) -> bool:
    """Return whether a pairing fails as a whole. Tests miss: a few of many may pass. Bad nodes alone, a quarter of all, fail in half of the pairs."""
    return sum(failed) >= len(failed) - len(failed) // _PASSES_OF


def find_rails(known: Progress, rails: int) -> Steps[bool]:
    """Name the rails on which no pair passes. Whether they explain everything: the other rails passed with all units. Else what follows is
    asked on the rails that fail."""
    everybody = tuple(known.left())
    known.is_by_rail = True
    failed = yield "each rail by itself", [everybody] * rails
    known.is_by_rail = False
    bad = [rail for rail, is_bad in enumerate(failed) if is_bad]
    if not bad or len(bad) == rails or len(everybody) < 4:
        return False
    for rail in bad:
        known.on = (rail,)
        for _ in range(_PAIRINGS):
            units = known.shuffled(everybody)
            if not is_whole((yield "pairs on the rail that fails", [*zip(units[::2], units[1::2], strict=False)])):
                break
        else:
            known.bad_rails.append(rail)
    known.on = tuple(rail for rail in bad if rail not in known.bad_rails)
    return not known.on
