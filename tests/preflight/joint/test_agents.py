"""Launchers that meet: who came and went is named, and whether the others wait for it."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from preflight.joint.test_judge import gathered, said
from torchtune_sys.host.peers.wire import handshake
from torchtune_sys.model.preflight import Weight
from torchtune_sys.preflight.joint import agents, messages
from torchtune_sys.preflight.joint.agent import Agent
from torchtune_sys.preflight.joint.gathered import Gathered, Node, NodeEvent
from torchtune_sys.preflight.joint.job import Job, Times
from torchtune_sys.preflight.joint.judge.whole import whole
from torchtune_sys.preflight.joint.seats import Seats

WENT = NodeEvent(at_s=1, node=2, cause="rank-killed", seen="its process ended: closed")


def met(*gone: int, nodes: int = 4, least: int = 3, **changed: object) -> Gathered:
    """Launchers; of those that are ``gone`` nothing is known but the name that they said at once."""
    found = gathered(
        nodes, agents_at_least=least, links={}, computes={}, collectives=[], departed={*gone}, differing=(), **changed
    )
    for node in gone:
        left = Node(node=node, address=f"10.0.0.{node + 1}", ranks=(0,), alive=False, notes={"name": f"n{node}", "agents": [""]})
        found.members = {**found.members, node: left}
    return found


def job(nodes: int = 4) -> Job:
    return agents.job_of("127.0.0.1:29400", "7", 3, nodes, label="", labels=(), secret=b"", last_call_s=1, is_host=True)


def test_who_came_and_went_is_named_with_what_happened_and_does_not_count() -> None:
    verdict = whole(met(2, events=[WENT]))
    assert said(verdict) == {"n2": {"rank-killed"}}
    assert verdict.verdict == "no-go", "the agents weigh themselves whether so many suffice"
    assert verdict.absent == ()


def test_who_came_and_went_to_the_rendezvous_may_train() -> None:
    """Its pre-flight ended, its torchrun did not: it is told once, under its name, and nobody is kept from starting."""
    verdict = whole(met(2, events=[WENT], passed=("10.0.0.3",)))
    assert (verdict.verdict, said(verdict), verdict.passed) == ("unknown", {}, ())
    (node,) = [each for each in verdict.nodes if each.node == "n2"]
    assert [(cause.cause, cause.weight) for cause in node.causes if cause.cause == "rank-killed"] == [
        ("rank-killed", Weight.UNKNOWN)
    ]
    assert "without a pre-flight" in " ".join(cause.seen for cause in node.causes)


@pytest.mark.parametrize("ranks", [(0,), ()])
def test_who_went_to_the_rendezvous_is_one_of_those_who_suffice(ranks: tuple[int, ...]) -> None:
    """Also where the process that spoke for the agents of its host was told of its end before it was killed itself."""
    found = met(2, events=[WENT], passed=("10.0.0.3",))
    found.members = {**found.members, 2: msgspec.structs.replace(found.members[2], ranks=ranks)}
    assert whole(found).agents["n2"] == 1


def test_what_happens_when_all_have_met_decides_nothing() -> None:
    found = met(2, events=[WENT])
    found.departed = set()
    assert (said(whole(found)), whole(found).verdict) == ({}, "unknown")


def test_who_came_and_went_is_not_absent_too() -> None:
    found, wanted = met(2, events=[WENT]), job().agents
    assert wanted is not None
    assert agents.absent(found, wanted, 4) == {}
    found.members = {node: member for node, member in found.members.items() if node != 3}
    assert agents.absent(found, wanted, 4) == {3: "1 of 4 agents"}
    listed = msgspec.structs.replace(wanted, labels=("a", "b", "c", "d"))
    for node, label in ((0, "a"), (1, "b"), (2, "d")):
        found.members[node].notes["agents"] = [label]  # type: ignore[index]
    assert agents.absent(found, listed, 4) == {3: "c"}


@pytest.mark.parametrize(("name", "again"), [("n2", {2}), ("n9", set())])
def test_another_agent_of_the_same_host_takes_the_place_of_one_that_went(name: str, again: set[int]) -> None:
    found = met(2, nodes=4, events=[WENT])
    found.members[3].notes["facts"]["name"] = name  # type: ignore[index]
    assert agents.came_again(found, 4) == again


def test_where_all_are_there_nobody_is_gone() -> None:
    assert agents.came_again(met(2, nodes=5, events=[WENT]), 4) == {2}


def test_a_place_is_given_again_where_its_agent_went_and_all_are_given_away() -> None:
    seats, wanted = Seats(), job(3)

    def asks(token: str, departed: tuple[int, ...] = ()) -> int:
        return seats.give(wanted, messages.Seat(key=wanted.key, token=token), departed)

    assert [asks("a"), asks("b"), asks("a"), asks("c")] == [1, 2, 1, -1]
    assert asks("c", (1,)) == 1
    assert [asks("c"), asks("d"), asks("b")] == [1, -1, 2]


def test_a_launcher_whose_process_of_the_host_lives_on_is_gone_too() -> None:
    """Its ranks are none: it is named, counts as no agent, and is not absent besides."""
    found, wanted = met(2, events=[WENT]), job().agents
    assert wanted is not None
    found.members[2] = Node(node=2, address="10.0.0.3", ranks=(), notes=found.members[2].notes)  # type: ignore[index]
    assert agents.absent(found, wanted, 4) == {}
    assert agents.came_again(found, 4) == set()
    assert said(whole(found)) == {"n2": {"rank-killed"}}
    found.members = {node: member for node, member in found.members.items() if node != 3}
    assert agents.absent(found, wanted, 4) == {3: "1 of 4 agents"}


def test_a_second_launcher_of_a_host_lacks_no_first_one() -> None:
    found = met()
    found.members[1] = msgspec.structs.replace(found.members[1], ranks=(1,))  # type: ignore[index]
    assert (whole(found).verdict, said(whole(found))) == ("go", {})


def test_who_leads_another_on_its_way_stays_until_that_has_its_verdict() -> None:
    """Its end would look like the coordinator's: once in 120 runs, at a load of 42, a node called all others missing then."""

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def carried() -> list[bool]:
        agent = Agent(job(), Times(time.monotonic(), 60, 20))
        near = await asyncio.start_server(agent._serve_node, "127.0.0.1", 0)
        far = await asyncio.start_server(held, "127.0.0.1", 0)
        agent.map.table[1] = ("127.0.0.1", far.sockets[0].getsockname()[1])
        told = [agent._is_followed()]
        streams = await asyncio.open_connection("127.0.0.1", near.sockets[0].getsockname()[1])
        wire = await handshake(*streams, agent.job.secret, first=True)
        wire.send(messages.plain(messages.Relay(to=1)))
        assert (await wire.receive(5))["is"] == "through"
        told.append(agent._is_followed())
        wire.close()
        until_s = time.monotonic() + 5
        while agent._is_followed() and time.monotonic() < until_s:
            await asyncio.sleep(0.01)
        near.close()
        far.close()
        await asyncio.sleep(0.05)
        return [*told, agent._is_followed()]

    assert asyncio.run(carried()) == [False, True, False]
