"""Run the group tests that the isolation requests, until it names the node, link, leaf switch or rail that fails or is slow.

Each group is a collective in children that are killed at its own deadline, so that a hang is an answer. Where it was asked for, every two nodes of a group
also exchange something, rail by rail. A group that is only slow is tested once more, and what was slow both times counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from torchtune_sys.model.numbers import natural
from torchtune_sys.preflight.isolation.exchanges import Exchanges
from torchtune_sys.preflight.isolation.planner import Isolation
from torchtune_sys.preflight.isolation.usual_times import Way
from torchtune_sys.preflight.isolation.values import Domain, Round, of_units
from torchtune_sys.preflight.joint.deadlines import Deadlines
from torchtune_sys.preflight.joint.gathered import Gathered, GroupTests, Late, Rank, RoundRun, own_names
from torchtune_sys.preflight.joint.job import Leaf
from torchtune_sys.preflight.joint.sums import late as late_in
from torchtune_sys.preflight.joint.worker.exchanges import EXCHANGED_BYTES, is_basic

Answers = dict[Rank, Any]


class Tester(Protocol):
    """Has groups of ranks tested at the same time, each within so many seconds."""

    async def __call__(
        self, groups: Sequence[Sequence[Rank]], within_s: Sequence[float], *, timed: bool = False, short: bool = False
    ) -> list[Answers]: ...


class _Shown(msgspec.Struct, kw_only=True):
    """What one group showed."""

    error: str = ""
    """Why it failed; empty where it did not."""
    times: dict[Way, list[float]] = {}
    slow: set[Way] = set()
    is_late: bool = False

    @property
    def is_only_slow(self) -> bool:
        """Nothing failed, but an exchange was late or ways slow."""
        return not self.error and (self.is_late or bool(self.slow))


class Isolating:
    """Of the nodes of ``ranks``. ``alive`` says which nodes are there: a group with one that is gone has failed, and is not run."""

    def __init__(
        self, gathered: Gathered, ranks: Sequence[Rank], leaves: Sequence[Leaf], test: Tester, alive: Callable[[], set[int]]
    ) -> None:
        self._gathered, self._test, self._alive = gathered, test, alive
        self._by_node: dict[int, list[Rank]] = {}
        for rank in ranks:
            self._by_node.setdefault(rank[0], []).append(rank)
        self._nodes = [*self._by_node]
        own = own_names(gathered.members)
        self._domains = _domains(leaves, [{gathered.name(node), own.get(node, "")} for node in self._nodes])
        locals_ = {tuple(local for _node, local in each) for each in self._by_node.values()}
        self._rails = len(next(iter(locals_))) if len(locals_) == 1 else 1
        self._exchanges, self._deadlines = Exchanges(), Deadlines(timed=False)
        self._tests = gathered.tests = GroupTests()

    async def run(
        self, show: Callable[[str], None], *, is_asked: bool, failed_s: float | None = None, late: Late | None = None
    ) -> None:
        """Until it is named, or no time is left: what is known then counts. Not ``is_asked``: slow ways are not looked for. ``failed_s``: the
        collective of all has failed, or was ``late``, after so long, and is not asked again."""
        self._tests.is_asked, self._tests.sent, self._tests.late = is_asked, EXCHANGED_BYTES, late
        self._deadlines = Deadlines(timed=is_asked, all_took_s=failed_s if late and failed_s else 0.0)
        if len(self._nodes) < (2 if is_asked else 3):  # of two nobody says which it is
            return
        isolation = Isolation(len(self._nodes), self._domains, rails=self._rails)
        if failed_s is not None:
            isolation.take([True])
            self._tests.rounds.append(RoundRun(seconds=failed_s, slow=(tuple(self._nodes),) if late else ()))
        try:
            while (now := isolation.next_round()) is not None:
                show(f"isolation, round {now.number}: {now.purpose}")
                isolation.take(await self._round(now))
        finally:
            if isolation.next_round() is not None:
                isolation.stop("no time was left (--budget)")
            self._gathered.isolated = of_units(isolation.verdict(), self._nodes)

    async def _round(self, now: Round) -> list[bool]:
        """Which groups fail, or are slow twice."""
        began_s = time.monotonic()
        rails = now.rails or ((),) * len(now.groups)
        groups = [self._ranks_of(group, on) for group, on in zip(now.groups, rails, strict=True)]
        shown = await self._shown(groups)
        again = [place for place, each in enumerate(shown) if each.is_only_slow]
        for place, second in zip(again, await self._shown([groups[place] for place in again]), strict=True):
            shown[place].slow &= second.slow
            shown[place].is_late &= second.is_late
            shown[place].error = second.error
        for group, each in zip(now.groups, shown, strict=True):
            self._keep(tuple(self._nodes[unit] for unit in group), each)
        slow = [group for group, each in zip(now.groups, shown, strict=True) if each.is_only_slow]
        named = tuple(tuple(self._nodes[unit] for unit in group) for group in slow)
        self._tests.rounds.append(RoundRun(seconds=time.monotonic() - began_s, slow=named))
        return [bool(each.error) or each.is_only_slow for each in shown]

    def _ranks_of(self, group: Sequence[int], on: Sequence[int]) -> list[Rank]:
        """All ranks of these nodes, or those of some rails."""
        return [rank for unit in group for at, rank in enumerate(self._by_node[self._nodes[unit]]) if not on or at in on]

    async def _shown(self, groups: Sequence[Sequence[Rank]]) -> list[_Shown]:
        alive, timed = self._alive(), self._tests.is_asked
        whole = [place for place, group in enumerate(groups) if {node for node, _local in group} <= alive]
        found = [_Shown(error="the process of a node is gone") for _group in groups]
        if not whole:
            return found
        nodes = [{node for node, _local in groups[place]} for place in whole]
        within_s = [self._deadlines.of(each) for each in nodes]
        short = self._tests.late is None or is_basic(self._tests.late.what)
        answers = await self._test([groups[place] for place in whole], within_s, timed=timed, short=short)
        for place, each in zip(whole, answers, strict=True):
            found[place] = _Shown(error=_error(each), times=_times(groups[place], each), is_late=late_in(each) is not None)
        for group, limit_s, place, each in zip(nodes, within_s, whole, answers, strict=True):
            self._deadlines.saw(group, limit_s, None if found[place].error else _longest_s(each))
        for place in whole:
            self._exchanges.take(found[place].times)
        for place in whole:
            found[place].slow = self._exchanges.slow(found[place].times)
        return found

    def _keep(self, nodes: tuple[int, ...], shown: _Shown) -> None:
        tests = self._tests
        tests.times, tests.usual_s, tests.limit_s = self._exchanges.best, self._exchanges.usual_s, self._exchanges.limit_s
        tests.slow -= {*shown.times}
        tests.slow |= shown.slow
        if len(nodes) == 2 and shown.error:
            tests.failed.add((nodes[0], nodes[1]))
            tests.errors[nodes] = shown.error


def passed(answers: Mapping[Rank, Any]) -> bool:
    """Return whether every rank of a group ended well."""
    return not _error(answers)


def _error(answers: Mapping[Rank, Any]) -> str:
    for value in answers.values():
        if not isinstance(value, dict) or not value.get("ok"):
            told = value if isinstance(value, dict) else {}
            return str(told.get("wrong") or told.get("error") or "no answer")[:200]
    return ""


def _longest_s(answers: Mapping[Rank, Any]) -> float:
    """How long the slowest rank was at it, as the ranks say."""
    told = [value.get("spent_s") for value in answers.values() if isinstance(value, dict)]
    return max((value for value in told if isinstance(value, float) and 0 < value < _LONGEST_US / 1e6), default=0.0)


def _times(group: Sequence[Rank], answers: Mapping[Rank, Any]) -> dict[Way, list[float]]:
    """Seconds of each sweep by way; the slowest rail counts."""
    found: dict[Way, list[float]] = {}
    for rank, value in answers.items():
        ways = value.get("ways") if isinstance(value, dict) else None
        peers = [other for other in group if other[1] == rank[1]]
        for name, sweeps in ways.items() if isinstance(ways, dict) else ():
            at = natural(name, 7) if isinstance(name, str) else None
            if at is None or at >= len(peers) or not isinstance(sweeps, list):
                continue
            seconds = [value / 1e6 for value in sweeps if isinstance(value, int) and 0 < value < _LONGEST_US]
            way = rank[0], peers[at][0]
            before = found.get(way, seconds)
            found[way] = [max(pair) for pair in zip(before, seconds, strict=False)]
    return {way: seconds for way, seconds in found.items() if seconds}


_LONGEST_US = 3_600_000_000


def _domains(leaves: Sequence[Leaf], names: Sequence[set[str]]) -> tuple[Domain, ...]:
    """Return the switches with nodes of this job behind them, where there are two or more. A node is known by its own name, with its domain or
    without, or by that of the node list."""
    unit = {called: place for place, each in enumerate(names) for name in each for called in (name, name.partition(".")[0])}
    found = []
    for leaf in leaves:
        units = tuple(sorted({unit[name] for name in leaf.nodes if name in unit}))
        if units:
            found.append(Domain(kind="leaf", name=leaf.name, units=units))
    return tuple(found) if len(found) > 1 else ()
