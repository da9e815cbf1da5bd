"""Simulate the isolation of bad nodes and links on its own planner, beside simpler strategies, and print a table with 95 % intervals.

    python scripts/simulate_isolation.py [--runs 300] [--large 20] [--sizes 17,64,1024,16384] [--parts | --alone]

A group fails if it holds a bad node or both ends of a bad link. One test misses that with the chance "miss", and fails for nothing with the
chance "false". ``--large``: runs where there are more than 10,000 nodes; ``--alone``: without the simpler strategies.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torchtune_sys.preflight.isolation.all_pairs import round_robin
from torchtune_sys.preflight.isolation.planner import Isolation
from torchtune_sys.preflight.isolation.values import Domain, Group, Outcome, Pair, Settings, Vote, pair

SIZES = (17, 64, 1024, 16384)
UNLIMITED = 1 << 20
CAP = 64
MANY = 10_000


class Case(NamedTuple):
    nodes: int
    links: int
    miss: float = 0.0
    false: float = 0.0
    repeats: int = 1
    vote: Vote = Vote.ANY

    @property
    def words(self) -> str:
        parts = [
            f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((self.nodes, "node"), (self.links, "link")) if count
        ]
        return " and ".join(parts) or "nothing"


CASES = (
    *(Case(nodes, links) for nodes, links in ((0, 0), (1, 0), (2, 0), (5, 0), (50, 0), (0, 1), (0, 2), (0, 5), (1, 1))),
    *(Case(nodes, links, 0.05, repeats=2) for nodes, links in ((1, 0), (2, 0), (5, 0), (50, 0), (0, 1), (0, 2))),
    *(Case(nodes, links, 0.2, repeats=3) for nodes, links in ((1, 0), (2, 0), (5, 0), (50, 0), (0, 1), (0, 2))),
    *(Case(nodes, 0, 0.0, 0.01, 3, Vote.MAJORITY) for nodes in (0, 1, 5, 50)),
)


class World:
    """What is bad, and how well tests see it."""

    def __init__(self, units: int, case: Case, seed: int) -> None:
        self.case, self.units, self.random = case, units, random.Random(seed * 7919 + units)
        self.nodes = {*self.random.sample(range(units), case.nodes)}
        well = [unit for unit in range(units) if unit not in self.nodes]
        self.links: set[Pair] = set()
        while len(self.links) < case.links:
            first, second = self.random.sample(well, 2)
            self.links.add(pair(first, second))
        self.involved = self.nodes | {end for link in self.links for end in link}
        self.rounds = 0

    def test(self, groups: Sequence[Group]) -> list[bool]:
        """One round. Only a few groups hold anything bad: those are looked up."""
        self.rounds += 1
        place = {unit: number for number, group in enumerate(groups) for unit in group if unit in self.involved}
        bad = {place[unit] for unit in self.nodes if unit in place}
        bad |= {place[one] for one, two in self.links if place.get(one, -1) == place.get(two, -2)}
        failed = [False] * len(groups)
        for number in bad:
            failed[number] = self.random.random() >= self.case.miss
        if self.case.false:
            failed = [each or self.random.random() < self.case.false for each in failed]
        return failed

    def repeated(self, groups: Sequence[Group]) -> list[bool]:
        """As often as the case says, for strategies that do not repeat by themselves."""
        counts = [sum(turns) for turns in zip(*(self.test(groups) for _ in range(self.case.repeats)), strict=True)]
        need = 1 if self.case.vote is Vote.ANY else self.case.repeats // 2 + 1
        return [count >= need for count in counts]


Named = tuple[set[int], set[Pair]]


def planned(world: World, seed: int) -> Named:
    """The product's own planner."""
    settings = Settings(rounds=UNLIMITED, repeats=world.case.repeats, vote=world.case.vote, seed=seed)
    isolation = Isolation(world.units, settings=settings)
    while (now := isolation.next_round()) is not None:
        isolation.take(world.test(now.groups))
    verdict = isolation.verdict()
    return ({*verdict.nodes}, {*verdict.pairs}) if verdict.outcome in (Outcome.WELL, Outcome.NAMED) else ({-1}, set())


def halving(world: World, _seed: int) -> Named:
    """Each group that fails is split, until one node is left; a link across two halves that pass is not named."""
    nodes: set[int] = set()
    groups: list[Group] = [tuple(range(world.units))]
    while groups:
        failed = [group for group, bad in zip(groups, world.repeated(groups), strict=True) if bad]
        nodes |= {group[0] for group in failed if len(group) == 1}
        groups = [half for group in failed if len(group) > 1 for half in (group[: len(group) // 2], group[len(group) // 2 :])]
    return nodes, set()


def plain_pairs(world: World, seed: int) -> Named:
    """Pairs, then each member of a failing pair with one that passed."""
    order = list(range(world.units))
    random.Random(seed).shuffle(order)
    groups: list[Group] = [tuple(order[at : at + 2]) for at in range(0, world.units - 1, 2)]
    failed = world.repeated(groups)
    proven = [unit for group, bad in zip(groups, failed, strict=True) if not bad for unit in group]
    suspects = [unit for group, bad in zip(groups, failed, strict=True) if bad for unit in group]
    suspects += order[2 * len(groups) :]
    nodes: set[int] = set()
    while suspects and proven:
        tests: list[Group] = [*zip(suspects, proven, strict=False)]
        nodes |= {test[0] for test, bad in zip(tests, world.repeated(tests), strict=True) if bad}
        suspects = suspects[len(tests) :]
    return nodes, set()


def all_pairs(world: World, _seed: int) -> Named:
    """Each pair once, a round of disjoint pairs after the other."""
    failing: dict[int, set[int]] = {}
    for groups in round_robin(range(world.units)):
        for (one, two), bad in zip(groups, world.repeated(groups), strict=True):
            if bad:
                failing.setdefault(one, set()).add(two)
                failing.setdefault(two, set()).add(one)
    nodes = {unit for unit, others in failing.items() if len(others) > world.units // 2}
    return nodes, {pair(one, two) for one, others in failing.items() for two in others if not nodes & {one, two}}


STRATEGIES: dict[str, Callable[[World, int], Named]] = {
    "isolation": planned,
    "halving": halving,
    "plain pairs": plain_pairs,
    "round-robin": all_pairs,
}
ROUND_ROBIN_AT_MOST = 64
"""Nodes up to which round-robin is simulated; its rounds are N - 1."""


def bound(units: int, case: Case) -> int | None:
    """Rounds that the planner promises; None for nodes and links at once, and for more than a quarter of bad nodes."""
    log = math.ceil(math.log2(units))
    if (case.nodes and case.links) or case.nodes > units // 4:
        return None
    if case.links:
        return case.repeats * (2 * log + 4 if case.links == 1 else case.links * (2 * log + 1) + 4)
    if case.repeats > 1:
        return 15 * case.repeats
    return 5 if case.nodes else 1


def interval(hits: int, runs: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(end, 3) for end in interval(300, 300)], [round(end, 3) for end in interval(10, 20)]
    ([0.987, 1.0], [0.299, 0.701])
    """
    z, share = 1.96, hits / runs
    middle, width = share + z * z / (2 * runs), z * math.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs))
    return max(0.0, (middle - width) / (1 + z * z / runs)), min(1.0, (middle + width) / (1 + z * z / runs))


def share(hits: int, runs: int) -> str:
    low, high = interval(hits, runs)
    return f"{100 * hits / runs:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def rows(sizes: Sequence[int], runs: int, large: int, names: Sequence[str]) -> Iterator[str]:
    for units in sizes:
        for case in CASES:
            if case.nodes > units // 4:
                continue
            for name in names:
                if name == "round-robin" and units > ROUND_ROBIN_AT_MOST:
                    continue
                yield row(units, case, name, STRATEGIES[name], runs if units < MANY else large)


def row(units: int, case: Case, name: str, strategy: Callable[[World, int], Named], runs: int) -> str:
    promised = bound(units, case) if name == "isolation" else None
    right = accused = above = beyond_cap = 0
    rounds: list[int] = []
    for seed in range(runs):
        world = World(units, case, seed)
        nodes, links = strategy(world, seed)
        right += (nodes, links) == (world.nodes, world.links)
        accused += bool(nodes - world.nodes - {-1})
        above += promised is not None and world.rounds > promised
        beyond_cap += world.rounds > CAP
        rounds.append(world.rounds)
    cells = [
        f"{units}", case.words, f"{100 * case.miss:g} / {100 * case.false:g}", f"{case.repeats} {case.vote.value}", name,
        f"{sum(rounds) / runs:.1f}", f"{max(rounds)}", "–" if promised is None else f"{promised}",
        "–" if promised is None else share(above, runs), f"{100 * beyond_cap / runs:.0f}", share(right, runs), share(accused, runs),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


LEAF, RAILS = 16, 4
PARTS = ("nothing", "a leaf cut off", "the way between two leaves", "a rail", "a node on one rail")
PART_CASES = ((0.0, 0.0, 1, Vote.ANY), (0.05, 0.0, 2, Vote.ANY), (0.2, 0.0, 3, Vote.ANY), (0.0, 0.01, 3, Vote.MAJORITY))


class PartWorld:
    """Leaf switches of 16 nodes and four rails, of which a part fails."""

    def __init__(self, units: int, part: str, miss: float, false: float, seed: int) -> None:
        self.part, self.miss, self.false, self.random = part, miss, false, random.Random(seed * 104_729 + units)
        self.leaves = tuple(
            Domain(kind="leaf", name=f"{at}", units=tuple(range(at, min(at + LEAF, units)))) for at in range(0, units, LEAF)
        )
        one, other = self.random.sample(self.leaves, 2)
        self.one, self.other = {*one.units}, {*other.units}
        self.names = (one.name, other.name)
        self.rail, self.node = self.random.randrange(RAILS), self.random.randrange(units)
        self.rounds = 0

    def _is_bad(self, group: Group, rails: Sequence[int]) -> bool:
        if self.part == "a leaf cut off":
            return 0 < len(self.one & {*group}) < len(group)
        if self.part == "the way between two leaves":
            return bool(self.one & {*group} and self.other & {*group})
        on_rail = not rails or self.rail in rails
        return (self.part == "a rail" and on_rail) or (self.part == "a node on one rail" and on_rail and self.node in group)

    def named(self, seed: int, repeats: int, vote: Vote) -> tuple[bool, bool]:
        """Whether exactly the part is named, and whether a node that has nothing to do with it is accused."""
        settings = Settings(rounds=UNLIMITED, repeats=repeats, vote=vote, seed=seed)
        isolation = Isolation(sum(len(leaf.units) for leaf in self.leaves), self.leaves, settings, RAILS)
        while (now := isolation.next_round()) is not None:
            self.rounds += 1
            rails = now.rails or ((),) * len(now.groups)
            bad = [self._is_bad(group, on) for group, on in zip(now.groups, rails, strict=True)]
            isolation.take([self.random.random() >= self.miss if each else self.random.random() < self.false for each in bad])
        found = isolation.verdict()
        said = (
            {domain.name for domain in found.domains},
            {frozenset((one.name, other.name)) for one, other in found.between},
            found.rails,
            found.nodes,
            found.pairs,
        )
        between = {frozenset(self.names)}
        expected = {
            "nothing": (set(), set(), (), (), ()),
            "a leaf cut off": ({self.names[0]}, set(), (), tuple(sorted(self.one)), ()),
            "the way between two leaves": (set(), between, (), (), ()),
            "a rail": (set(), set(), (self.rail,), (), ()),
            "a node on one rail": (set(), set(), (), (self.node,), ()),
        }[self.part]
        return said == expected, bool({*found.nodes} - {*expected[3]})


def part_rows(sizes: Sequence[int], runs: int, large: int) -> Iterator[str]:
    """Leaves and rails: the same planner is told which nodes are behind which switch, and how many rails there are."""
    yield "| N | bad | miss / false % | repeats, vote | rounds mean | max | exactly the part named % | accuses a healthy node % |"
    yield "|" + "---|" * 8
    for units in sizes:
        for part in PARTS:
            for miss, false, repeats, vote in PART_CASES:
                count = runs if units < MANY else large
                right = accused = 0
                rounds = []
                for seed in range(count):
                    world = PartWorld(units, part, miss, false, seed)
                    is_right, accuses = world.named(seed, repeats, vote)
                    right, accused = right + is_right, accused + accuses
                    rounds.append(world.rounds)
                noise = f"{100 * miss:g} / {100 * false:g} | {repeats} {vote.value}"
                mean = f"{sum(rounds) / count:.1f} | {max(rounds)}"
                yield f"| {units} | {part} | {noise} | {mean} | {share(right, count)} | {share(accused, count)} |"


HEAD = (
    "N", "bad", "miss / false %", "repeats, vote", "strategy", "rounds mean", "max", "bound", "above the bound %", f"above {CAP} %",
    "exact set right %", "accuses a healthy node %",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--large", type=int, default=20)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--parts", action="store_true", help="leaf switches and rails instead of nodes and links")
    parser.add_argument("--alone", action="store_true", help="the planner without the simpler strategies")
    asked = parser.parse_args()
    if asked.parts:
        for line in part_rows([int(size) for size in asked.sizes.split(",") if int(size) > 2 * LEAF], asked.runs, asked.large):
            print(line)
            sys.stdout.flush()
        return
    print("| " + " | ".join(HEAD) + " |")
    print("|" + "---|" * len(HEAD))
    names = [*STRATEGIES][: 1 if asked.alone else None]
    for line in rows([int(size) for size in asked.sizes.split(",")], asked.runs, asked.large, names):
        print(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
