"""One node of a job that knows its secret and lies: no other node is left out on its word alone, and what it says is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from preflight.joint.a_cluster import gathered, said, weighed
from preflight.joint.hostile import SECRET, free_port, job, ran, speaking, until
from preflight.joint.test_lying_peers import joined
from torchtune_sys.host.peers import wire
from torchtune_sys.model.preflight import Cause, Go, Weight
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.gathered import Compute, Gathered, LinkTest, Rank
from torchtune_sys.preflight.joint.isolating import Isolating
from torchtune_sys.preflight.joint.judge.whole import Whole, judged, whole
from torchtune_sys.preflight.joint.phases import Phases

EXTREMES: list[Any] = [1, 0, -1, 2**63, 10**30, 1e-300, 1e308, float("nan"), float("inf"), True, None, "1", [], {}]
NODES = [3, 4, 8]
USUAL_US = 900


def names_nobody_but(liar: int, verdict: Whole) -> None:
    assert {*said(verdict)} <= {f"n{liar}"}, said(verdict)
    assert all(f"n{liar}" in (link.from_, link.to) for link in verdict.links), verdict.links


def isolated(nodes: int, liar: int, told: Callable[[int], list[Any]], slow: int | None = None) -> Gathered:
    """Groups whose ways all take the usual time, or those of a ``slow`` node 50 times as long; the liar tells of its own what it likes."""
    found = gathered(nodes)

    def ways(rank: Rank, group: Sequence[Rank]) -> dict[str, Any]:
        others = [(at, other) for at, other in enumerate(group) if other != rank]
        times = {
            at: [USUAL_US * (50 if slow in (rank[0], other[0]) else 1) + at + 7 * turn for turn in range(3)]
            for at, other in others
        }
        return {f"{at}": told(at) if rank[0] == liar else times[at] for at, _other in others}

    async def tester(groups: Sequence[Sequence[Rank]], _within_s: Sequence[float], **_more: bool) -> list[Any]:
        return [{rank: {"ok": True, "spent_s": 0.1, "ways": ways(rank, group)} for rank in group} for group in groups]

    ranks, everybody = [(node, 0) for node in range(nodes)], {*range(nodes)}
    asyncio.run(Isolating(found, ranks, (), tester, lambda: everybody).run(lambda _text: None, is_asked=True))
    return found


@pytest.mark.parametrize("nodes", NODES)
def test_times_that_one_node_makes_up_make_no_other_slow(nodes: int) -> None:
    for liar in range(nodes):
        for value in EXTREMES:
            verdict = weighed(isolated(nodes, liar, lambda _at, value=value: [value] * 3))  # type: ignore[misc]
            names_nobody_but(liar, verdict)
            assert verdict.isolation is None or {*verdict.isolation.exclude} <= {f"n{liar}"}, (liar, value, verdict.isolation)


@pytest.mark.parametrize("nodes", NODES)
def test_a_slow_node_is_named_beside_one_that_makes_up_its_times(nodes: int) -> None:
    verdict = weighed(isolated(nodes, 0, lambda _at: [1, 1, 1], slow=2))
    assert "n2" in {*said(verdict)} | {end for link in verdict.links for end in (link.from_, link.to)}
    assert "n1" not in said(verdict)


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("there_and_back_s", [1e-4, 2e-2])
def test_rates_and_delays_that_one_node_makes_up_make_no_other_bad(nodes: int, there_and_back_s: float) -> None:
    well = {"connect": "ok", "small_s": there_and_back_s, "beyond": True, "rates": [1e9, 1.1e9], "sent": 200}
    for liar in range(nodes) if nodes < 8 else (0, 7):
        for field in ("small_s", "rates", "sent", "beyond", "connect"):
            for value in [*EXTREMES, [1e14] * 3, [1e-9]]:
                found = gathered(nodes)
                for way in found.links:
                    told = {**well, field: value} if way[0] == liar else well
                    test = msgspec.structs.replace(LinkTest.of(told), arrived=200)
                    found.links[way] = [test, msgspec.structs.replace(test, is_alone=True)]
                names_nobody_but(liar, weighed(found))


@pytest.mark.parametrize("nodes", NODES)
def test_steps_that_one_node_makes_up_make_no_other_slow_or_wrong(nodes: int) -> None:
    well = Compute(hardware="x", kind="x", kernel_s=(1.0, 1.01), weights="aa", share=0.9, gap=0.0, spare=1.0)
    lies: list[dict[str, Any]] = [{"kernel_s": (value, value)} for value in (1e-300, -1.0, 0.0, 1e308, float("nan"))]
    lies += [{"share": value, "spare": 9.0} for value in (1e-300, 1e308, -1e308, float("nan"))] + [
        {"weights": "zz"},
        {"gap": 1e308},
    ]
    for liar in range(nodes):
        for lie in lies:
            found = gathered(nodes)
            for rank in found.computes:
                found.computes[rank] = [msgspec.structs.replace(well, **lie) if rank[0] == liar else well] * 40
            names_nobody_but(liar, weighed(found))


def test_what_one_node_says_leaves_room_for_the_verdict() -> None:
    """A longer line than LINE_LIMIT is read by nobody: all nodes would end without a verdict."""
    found, long = gathered(3), "x" * (3 << 20)
    causes = [Cause(cause=f"c{at}", rule=long[:1000], blame="node", weight=Weight.FATAL, seen=long[:1000]) for at in range(900)]  # type: ignore[arg-type]
    found.members[0] = msgspec.structs.replace(
        found.members[0], notes={**found.members[0].notes, "node": msgspec.to_builtins(causes), "worker/0": {"error": long}}
    )
    for way in found.links:
        if way[0] == 0:
            test = LinkTest.of({"connect": long, "rates": [1.0] * 1_000_000})
            assert len(test.rates) < 1000 and len(test.connect) < 1000
            found.links[way] = [msgspec.structs.replace(test, connect=long)] * 2
    found.computes[0, 0] = [Compute(hardware=long, kind=long, wrong=long, weights=long, error=long)] * 2
    found.collectives = [{(0, 0): {"wrong": long, "error": long}, (1, 0): {"ok": True}, (2, 0): {"ok": True}}]
    weighed(found)
    assert whole(found).verdict is Go.NO_GO
    assert len(json.dumps(judged(found))) < wire.LINE_LIMIT // 8


@pytest.mark.parametrize("ranks", [8, 200])
def test_ranks_that_one_node_makes_up_have_no_majority(ranks: int) -> None:
    """Of three nodes with a rank each one says that it has 200: what they compute would be usual."""

    async def work() -> None:
        async with speaking(job(0, (free_port(),), SECRET)) as agent:
            await until(lambda: agent.coordinator is not None)
            coordinator = agent.coordinator
            assert coordinator is not None
            notes = {f"worker/{at}": {"torch": "2.13.0"} for at in range(ranks)}
            first = await joined(agent, 1, ranks=[*range(ranks)], expected=ranks, notes=notes)
            second = await joined(agent, 2, notes={"worker/0": {"torch": "2.13.0"}})
            await until(lambda: {1, 2} <= {*coordinator.members})
            coordinator.members[0].notes["worker/0"] = {"torch": "2.13.0"}
            phases = Phases(coordinator.members, coordinator.gathered, coordinator.times, world=coordinator.job.world)
            counts = [node for node, _local in phases._ready_ranks([0, 1, 2])]
            assert counts.count(1) <= 1 and {0, 2} <= {*counts}
            first.close()
            second.close()

    ran(work)


def test_nobody_is_lost_on_the_word_of_one_who_came_first() -> None:
    """A node comes and says that it lost the others as coordinators; then they come, and are heard."""

    async def work() -> None:
        async with speaking(job(0, (free_port(),), SECRET)) as agent:
            await until(lambda: agent.coordinator is not None)
            coordinator = agent.coordinator
            assert coordinator is not None
            first = await joined(agent, 1, lost={2: ["rank-stopped", "gone"], 0: ["link-down", "gone"]})
            await until(lambda: 1 in coordinator.members)
            second = await joined(agent, 2)
            await until(lambda: 2 in coordinator.members)
            assert [event for event in coordinator.gathered.events if event.node != 1] == []
            first.close()
            second.close()

    ran(work)


def test_two_that_say_they_are_one_node_are_both_told() -> None:
    async def work() -> None:
        async with speaking(job(0, (free_port(),), SECRET)) as agent:
            await until(lambda: agent.coordinator is not None)
            coordinator = agent.coordinator
            assert coordinator is not None
            first = await joined(agent, 1)
            await until(lambda: 1 in coordinator.members)
            second = await joined(agent, 1)
            assert (await second.receive(20))["is"] == "refused"
            (event,) = coordinator.gathered.events
            assert event.node == 1 and event.seen.count("127.0.0.1") == 2, event
            first.close()

    ran(work)


def test_lines_before_joining_share_the_memory_there_is_for_them() -> None:
    """256 connections of one address that know the secret, each in the midst of a line of 4 MiB, were a gigabyte."""

    async def work() -> None:
        async with speaking(job(0, (free_port(),), SECRET)) as agent:
            await until(lambda: agent.coordinator is not None)
            links = [await wire.call("127.0.0.1", agent.control_port, SECRET, 20) for _ in range(48)]
            who = messages.plain(messages.Who())
            for link in links:
                link.send(who)
                await link.receive(20)

            async def flooded(link: wire.Wire) -> bool:
                try:
                    for _ in range(14):
                        link._writer.write(b"x" * (256 << 10))
                        await asyncio.wait_for(link._writer.drain(), 20)
                    return True
                except (ConnectionError, asyncio.TimeoutError):
                    return False

            passed = await asyncio.gather(*map(flooded, links))
            await asyncio.sleep(0.3)
            assert agent.room.taken <= agent.room.limit
            assert not all(passed)
            honest = await joined(agent, 2)
            await until(lambda: agent.coordinator is not None and 2 in agent.coordinator.members)
            honest.close()

    ran(work)
