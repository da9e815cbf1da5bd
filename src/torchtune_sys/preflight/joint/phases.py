"""The phases of the joint pre-flight: test connections, train a step, run collectives."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import Any

import msgspec

from torchtune_sys.preflight.joint import judge
from torchtune_sys.preflight.joint.deadlines import Deadlines
from torchtune_sys.preflight.joint.gathered import WORDS_AT_MOST, Compute, Counted, Gathered, LinkTest, Rank, WorkerNote, taken
from torchtune_sys.preflight.joint.isolating import Isolating, passed
from torchtune_sys.preflight.joint.job import Leaf, Times
from torchtune_sys.preflight.joint.member import Members, present
from torchtune_sys.preflight.joint.sums import LATE_S, ended_by_signals, late, odd_sums

_LINK_S, _COUNT_S = 30.0, 10.0
_COMPUTE_S, _COLLECTIVE_S, _STORE_S = 20.0, 20.0, 15.0
_APART_S, _RESERVE_S = 0.5, 15.0
"""Between the turns of ranks that look slow, and what they leave for the collectives."""
_ASKERS = 2
"""Other nodes that try the address of a node's own name."""
_ALL_PAIRS = 8
"""Up to so many nodes each pair is tested."""


class Phases:
    """Of the nodes that came; what they answer goes into ``gathered``."""

    def __init__(
        self,
        members: Members,
        gathered: Gathered,
        times: Times,
        isolates: bool = False,
        parts: Sequence[Leaf] = (),
        world: int | None = None,
    ) -> None:
        """``isolates``: nodes and links are named by groups, also where nothing fails; ``parts``: the switches behind which nodes are; ``world``: how many
        ranks the job has, where that is known."""
        self._members, self._gathered, self._times = members, gathered, times
        self._isolates, self._parts, self._world = isolates, parts, world
        self._uncounted: dict[int, list[tuple[str, int, list[LinkTest], int]]] = {}
        """Tests by their receiver, which was not asked yet what arrived: the mark of the datagrams, their sender, and where the test stands."""
        self._lossy: dict[int, set[int]] = {}
        """Others to or from which many packets of a node get lost."""

    async def connections(self) -> None:
        """Each pair in each direction, one connection of a node at a time; what looks bad once more later. Where two others failed to reach a
        node, or two lost many packets, the rest only tries to connect."""
        failing: dict[int, set[int]] = {}
        here = present(self._members)
        for pairs in pairings(here):
            for ways in (pairs, [(second, first) for first, second in pairs]):
                await self._test(ways, failing)
                if len(here) <= _ALL_PAIRS:  # what is known when time runs out counts; many nodes would talk of nothing else
                    await self._count()
        await self._count()
        await self._again(judge.doubtful_links(self._gathered, and_shared=False))

    async def _again(self, doubtful: list[tuple[int, int]]) -> None:
        """Test once more what failed: a fault must show twice: a burst of other traffic, or a busy CPU, does not."""
        for now in disjoint(doubtful):
            await self._test(now, {})
            await self._count()

    async def _rates_again(self) -> None:
        """Rates that were measured while all imported torch, on CPUs that nodes share, say little: those of now replace them."""

        async def one(sender: int, receiver: int) -> None:
            tests = self._gathered.links[sender, receiver]
            if rates := await self._rates(sender, receiver):
                tests[0] = msgspec.structs.replace(tests[0], rates=rates)

        alive = {*present(self._members)}
        for now in disjoint(judge.noisy_links(self._gathered)):
            await asyncio.gather(*(one(*way) for way in now if {*way} <= alive))

    async def _rates(self, sender: int, receiver: int) -> tuple[float, ...]:
        to = self._members[receiver]
        value = await self._members[sender].ask(_LINK_S, do="rates", address=to.address, port=to.link[0], mark=to.link[2])
        return LinkTest.of(value).rates if isinstance(value, dict) else ()

    async def _test_alone(self, way: tuple[int, int]) -> bool:
        """Test a way while no other is, and where it is narrow a control way just after it. Whether there was an answer."""
        tests, least_rate = self._gathered.links[way], judge.least_rate(self._gathered)
        before = len(tests)
        await self._test([way], {}, enough_rate=least_rate)
        await self._count()
        if len(tests) == before:
            return False
        control = judge.control_of(self._gathered, way)
        if control and {*control} <= {*present(self._members)} and max(tests[-1].rates, default=least_rate) < least_rate:
            rates = await self._rates(*control)
            tests[-1] = msgspec.structs.replace(tests[-1], control_rate=max(rates, default=0.0))
        return True

    async def confirm(self) -> None:
        """Test once more what is slow, when facts and torch are there and the CPUs are free; then what a verdict would rest on, one connection at a time."""
        await self._rates_again()
        await self._again(judge.doubtful_links(self._gathered, and_shared=True))
        silent: set[tuple[int, int]] = set()
        while ways := [way for way in judge.accused_links(self._gathered) if way not in silent]:
            if not await self._test_alone(ways[0]):
                silent.add(ways[0])

    async def names(self) -> None:
        """Try the address that gloo will tell of a node, where it is another than the one by which all reached it."""

        async def one(node: int, address: str) -> None:
            to = self._members[node]
            port, udp, mark = to.link
            how = {"address": address, "port": port, "udp": udp, "mark": mark, "token": secrets.token_hex(8), "short": True}
            askers = [other for other in present(self._members) if other != node][:_ASKERS]
            found = await asyncio.gather(*(self._members[other].ask(_LINK_S, do="link", **how) for other in askers))
            words = [LinkTest.of(value).connect for value in found if isinstance(value, dict)]
            if words and "ok" not in words:
                self._gathered.unreached_names[node] = f"{address} ({words[0]})"

        told = {node: judge.named_elsewhere(self._members[node].as_gathered()) for node in present(self._members)}
        await asyncio.gather(*(one(node, address) for node, address in told.items() if address))

    async def _test(
        self, ways: Sequence[tuple[int, int]], failing: dict[int, set[int]], *, enough_rate: float | None = None
    ) -> None:
        """``enough_rate``: of a way that is tested alone; None beside others."""

        async def one(sender: int, receiver: int) -> tuple[int, int, str, Any]:
            to, token = self._members[receiver], secrets.token_hex(8)
            port, udp, mark = to.link
            short = any(len(bad.get(end, ())) > 1 for end in (sender, receiver) for bad in (failing, self._lossy))
            how = {"address": to.address, "port": port, "udp": udp, "mark": mark, "token": token}
            found = await self._members[sender].ask(_LINK_S, do="link", **how, short=short, enough_rate=enough_rate or 0.0)
            return sender, receiver, token, found

        alive = {*present(self._members)}
        for sender, receiver, token, value in await asyncio.gather(*(one(*way) for way in ways if {*way} <= alive)):
            if not isinstance(value, dict):
                continue
            test = msgspec.structs.replace(LinkTest.of(value), is_alone=enough_rate is not None)
            tests = self._gathered.links.setdefault((sender, receiver), [])
            self._uncounted.setdefault(receiver, []).append((token, sender, tests, len(tests)))
            tests.append(test)
            if test.connect != "ok" or test.beyond is False:
                failing.setdefault(sender, set()).add(receiver)
                failing.setdefault(receiver, set()).add(sender)

    async def _count(self) -> None:
        """Ask the receivers of tests how many datagrams of each came."""

        async def one(node: int) -> None:
            tests = self._uncounted.pop(node)
            told = await self._members[node].ask(_COUNT_S, do="count", tokens=[token for token, *_rest in tests])
            counted = taken(told, Counted)
            if counted is None:
                return
            for token, sender, each, at in tests:
                arrived = counted.from_.get(token, 0)
                each[at] = msgspec.structs.replace(each[at], arrived=arrived, overflowed=counted.overflowed)
                if judge.loses_much(each[at]):
                    self._lossy.setdefault(sender, set()).add(node)
                    self._lossy.setdefault(node, set()).add(sender)

        await asyncio.gather(*map(one, [*self._uncounted]))

    def _ready_ranks(self, nodes: Iterable[int]) -> list[tuple[int, int]]:
        """Node and local rank of those that have torch."""
        return [
            (node, local)
            for node in nodes
            for local in self._ranks_of(node)
            if (taken(self._members[node].notes.get(f"worker/{local}"), WorkerNote) or WorkerNote()).torch
        ]

    def _ranks_of(self, node: int) -> list[int]:
        """Return its ranks; where all nodes tell of more than the job has, no more than those of the median node: what most ranks compute is right."""
        counts = [len({*member.ranks}) for member in self._members.values()]
        ranks = sorted({*self._members[node].ranks})
        return ranks if self._world is None or sum(counts) <= self._world else ranks[: median_low(counts)]

    async def _ask_ranks(self, tasks: Mapping[tuple[int, int], Any], deadline_s: float) -> dict[tuple[int, int], Any]:
        nodes: dict[int, dict[int, Any]] = {}
        for (node, local), task in tasks.items():
            nodes.setdefault(node, {})[local] = task

        async def one(node: int) -> Any:
            return await self._members[node].ask(deadline_s, do="ranks", tasks=nodes[node])

        found = await asyncio.gather(*map(one, nodes))
        return {
            (node, local): answers[str(local)]
            for node, answers in zip(nodes, found, strict=True)
            if isinstance(answers, dict)
            for local in nodes[node]
            if str(local) in answers
        }

    async def compute(self) -> None:
        """Run the training step and the timed kernel on all ranks; again where somebody was odd, so that noise must come twice."""
        ranks, turn = self._ready_ranks(present(self._members)), 0
        while ranks and turn < judge.TURNS_AT_MOST:
            found = await self._ask_ranks({rank: {"do": "compute", "turn": turn} for rank in ranks}, _COMPUTE_S)
            for rank, value in found.items():
                told = taken(value, Compute)
                if told is not None:
                    self._gathered.computes.setdefault(rank, []).append(told)
            again, turn = judge.ranks_again(self._gathered), turn + 1
            ranks = [rank for rank in again if rank in found]
            if turn > 1 and ranks:  # a disturbance lasts seconds: turns far apart meet another moment
                if time.monotonic() > self._times.conduct_until_s - _RESERVE_S:
                    self._gathered.turns_cut = True
                    break
                await asyncio.sleep(_APART_S)

    async def collectives(self, show: Callable[[str], None]) -> None:
        """All ranks of the nodes that nothing speaks against; where that fails, or where it is asked for, groups that say which part it is."""
        unsound = judge.unsound(self._gathered) if not self._isolates else set()
        nodes = [node for node in present(self._members) if node not in unsound]
        ranks = self._ready_ranks(nodes)
        if len(ranks) < 2:
            return
        began_s = time.monotonic()
        within_s = Deadlines(timed=True).long_s(len(nodes)) if self._isolates else _COLLECTIVE_S
        answers = (await self._round([ranks], [within_s]))[0]
        self._gathered.collectives.append(answers)
        if self._gathered.strangers:
            return
        fails = not passed(answers) and not odd_sums(answers) and not ended_by_signals(answers)
        delay = late(answers) if passed(answers) else None
        if fails or delay or self._isolates:
            tested = Isolating(self._gathered, ranks, self._parts, self._round, lambda: {*present(self._members)})
            await tested.run(
                show, is_asked=self._isolates, failed_s=time.monotonic() - began_s if fails or delay else None, late=delay
            )

    async def _round(
        self, groups: Sequence[Sequence[Rank]], within_s: Sequence[float], *, timed: bool = False, short: bool = False
    ) -> list[dict[Rank, Any]]:
        """Each group in children of its own, which meet at a store that its first rank keeps and that outlives them: no group needs
        another one's node. What each rank answered, by group. ``within_s``: of each group; ``short``: less is added up; ``timed``: pairs exchange."""
        heads = [group[0] for group in groups]
        stores = await self._ask_ranks({head: {"do": "store", "seconds": self._times.whole_s} for head in heads}, _STORE_S)
        tasks = {}
        for head, group, limit_s in zip(heads, groups, within_s, strict=True):
            prefix = secrets.token_hex(8)
            port = stores[head].get("port") if isinstance(stores.get(head), dict) else None
            for at, rank in enumerate(group) if port else ():
                address = "127.0.0.1" if rank[0] == head[0] else self._members[head[0]].address
                where = {
                    "store": [address, port],
                    "prefix": prefix,
                    "rank": at,
                    "world": len(group),
                    "short": short,
                    "late_s": LATE_S,
                    "within_s": limit_s,
                }
                peers = [place for place, other in enumerate(group) if other[1] == rank[1]] if timed else []
                tasks[rank] = {"do": "collective", **where, "timed": peers if len(peers) > 1 else []}
        found = await self._ask_ranks(tasks, max(within_s))
        for (node, _local), value in found.items():
            if isinstance(value, dict) and value.get("stranger"):
                self._gathered.strangers[node] = str(value["stranger"])[:WORDS_AT_MOST]
        return [{rank: found.get(rank) for rank in group} for group in groups]


def disjoint(ways: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of ways, in each of which a node has part in one.

    >>> list(disjoint([(0, 1), (1, 0), (2, 3), (0, 3)]))
    [[(0, 1), (2, 3)], [(1, 0)], [(0, 3)]]
    """
    left = [*ways]
    while left:
        now, later, used = [], [], set[int]()
        for way in left:
            if used & {*way}:
                later.append(way)
            else:
                now.append(way)
                used |= {*way}
        yield now
        left = later


def pairings(nodes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs: every pair once for few nodes, else as many rounds as the logarithm, in which nobody meets the same twice.

    >>> pairings([0, 1, 2])
    [[(1, 2)], [(0, 1)], [(0, 2)]]
    >>> len(pairings(range(1024)))
    12
    """
    ring: list[int | None] = [*nodes]
    if len(ring) % 2:
        ring.append(None)
    count = len(ring)
    rounds = range(count - 1)
    chosen = (
        rounds
        if count <= _ALL_PAIRS
        else [step * (count - 1) // (count.bit_length() + 1) for step in range(count.bit_length() + 1)]
    )
    found = []
    for turn in chosen:
        turned = [ring[0], *(ring[1 + (turn + at) % (count - 1)] for at in range(count - 1))]
        pairs = ((turned[at], turned[count - 1 - at]) for at in range(count // 2))
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
    return found
