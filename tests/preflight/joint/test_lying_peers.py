"""What a node, or a coordinator, that knows the job's secret and lies can do to the process that speaks for another node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from preflight.joint.hostile import HERE, SECRET, WHO, answers, free_port, is_closed, job, ran, speaking, until
from torchtune_sys.host.peers import wire
from torchtune_sys.host.peers.wire import Gone, Wire, call
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.agent import Agent
from torchtune_sys.preflight.joint.job import Job


async def joined(agent: Agent, node: int = 1, **changed: Any) -> Wire:
    link = await call(HERE, agent.control_port, agent.job.secret, 20)
    link.send(WHO)
    await link.receive(20)
    link.send({**joining(node), **changed})
    return link


def joining(node: int) -> dict[str, Any]:
    join = messages.Join(
        node=node, control=1, link=(1, 1, "x"), ranks=[0], expected=1, notes={}, words={}, lost={}, ended={}, address="127.0.0.9"
    )
    return messages.plain(join)


# -- nodes that lie ------------------------------------------------------------------------------------------------------------------------

DEEP = b'{"is":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
JUNK: list[Any] = [None, -1, 1 << 70, 1e300, True, "x" * 5000, [], [[]], {}, {"a": {}}, ["x", 1], {"1": ["x"]}, float("nan")]


def signed(link: Wire, text: bytes) -> None:
    """A line that says it is somebody of the job, with any text."""
    mac = wire._mac(link._out_key, link._sent, text)
    link._sent += 1
    link._writer.write(mac + b" " + text + b"\n")


def test_no_form_of_a_message_stops_the_process() -> None:
    """Also of one who knows the secret: brackets 200,000 deep, numbers of 100,000 digits, and every field with something else in it."""

    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            rng = random.Random(17)
            texts = [
                DEEP,
                b"9" * 100_000,
                b"nonsense",
                b"[]",
                b'{"is": "join"}',
                b'{"is": "relay", "to": -1}',
                b'{"is": "relay", "to": 1e9}',
            ]
            for _ in range(60):
                fields = joining(1)
                fields[rng.choice([*fields])] = rng.choice(JUNK)
                texts.append(json.dumps(fields).encode())
            for text in texts:
                link = await call(HERE, agent.control_port, SECRET, 20)
                link.send(WHO)
                await link.receive(20)
                signed(link, text)
                link._writer.write_eof()
                assert await is_closed(link._reader, 20)
            assert await answers(agent)
            assert agent.coordinator is not None
            link = await joined(agent)
            await until(lambda: agent.coordinator is not None and 1 in agent.coordinator.members)
            said = [messages.Note(key="facts", value=1), messages.Ranks(ranks=[0]), messages.Done(id="1.1", value={})]
            for message in said:
                fields = messages.plain(message)
                fields[rng.choice([name for name in fields if name != "value"])] = rng.choice(JUNK)
                link = await joined(agent, 2)
                link.send(fields)
                link._writer.write_eof()
                await is_closed(link._reader, 20)
            assert await answers(agent)

    ran(work)


def test_a_node_says_no_more_of_itself_than_a_node_has_to_say() -> None:
    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            link = await joined(agent)
            await until(lambda: agent.coordinator is not None and 1 in agent.coordinator.members)
            assert agent.coordinator is not None
            member = agent.coordinator.members[1]
            link.send(messages.plain(messages.Note(key="mine", value="x")))
            link.send(messages.plain(messages.Note(key="worker/7", value="x")))
            link.send(messages.plain(messages.Note(key="facts", value="x" * 100_000)))
            await until(lambda: "facts" in member.notes)
            assert {*member.notes} == {"facts"}
            with pytest.raises(Gone, match="more than a node may send"):
                for _ in range(20):
                    member.note("facts", "x" * 100_000)
            link.close()

    ran(work)


def test_a_node_names_no_causes_of_its_own_for_others() -> None:
    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            lost = {"2": ["silent-data-corruption", "x"], "700": ["rank-killed", "x"]}
            link = await joined(agent, lost=lost)
            for _ in range(200):
                link.send(messages.plain(messages.Event(cause="rank-killed", seen="x", local=0)))
                link.send(messages.plain(messages.Event(cause="link-delay", seen="x", local=0)))
            await until(lambda: agent.coordinator is not None and bool(agent.coordinator.gathered.events))
            assert agent.coordinator is not None
            events = agent.coordinator.gathered.events
            await asyncio.sleep(0.5)
            assert {(event.node, event.cause) for event in events} == {(1, "rank-killed")}
            assert len(events) <= 16

    ran(work)


FLOODS = {
    "pongs": messages.Pong(n=1, clock=1.0),
    "pongs ahead": messages.Pong(n=999, clock=1.0),
    "answers": messages.Done(id="9", value=[[]] * 1000),
    "ranks": messages.Ranks(ranks=[0]),
    "events": messages.Event(cause="rank-killed", seen="x", local=0),
}


@pytest.mark.parametrize("said", FLOODS.values(), ids=FLOODS)
def test_a_node_that_speaks_without_end_is_not_heard_without_end(
    said: messages.FromNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody had asked for was taken, as long as it came: others were not even greeted."""
    monkeypatch.setattr(Job, "silence_s", 60.0)

    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            link = await joined(agent)
            await until(lambda: agent.coordinator is not None and 1 in agent.coordinator.members)
            text = messages.encoded(said)
            for _ in range(12_000):
                signed(link, text)
            assert await asyncio.wait_for(is_closed(link._reader, 20), 20)
            assert await answers(agent)

    ran(work)


def test_a_node_that_speaks_fast_leaves_others_a_turn() -> None:
    """Whatever lay in the buffer, a quarter of a megabyte of short lines, was heard before anybody else was."""
    heard, most = 0, 0

    async def work() -> None:
        nonlocal heard, most

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal heard
            link = await wire.handshake(reader, writer, SECRET, first=False)
            with contextlib.suppress(Gone):
                while await link.receive(20):
                    heard += 1
            writer.close()

        server = await asyncio.start_server(hear, HERE, 0)
        link = await call(HERE, server.sockets[0].getsockname()[1], SECRET, 20)
        for _ in range(2000):
            link.send(WHO)
        while heard < 2000:
            before = heard
            await asyncio.sleep(0)
            most = max(most, heard - before)
        link.close()
        server.close()

    ran(work)
    assert most <= 2


# -- a coordinator that lies -----------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def false_coordinator(own: Job, says: Callable[[Wire], Awaitable[None]]) -> AsyncIterator[int]:
    """Without a secret anybody who guesses the key can be one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(Gone):
            link = await wire.handshake(reader, writer, own.secret, first=False)
            while messages.asked(await link.receive(20)).__class__ is messages.Who:
                link.send(messages.plain(messages.Me(node=0, key=own.key, members=1)))
            await says(link)
        writer.close()

    server = await asyncio.start_server(serve, HERE, own.ports[0])
    try:
        yield own.ports[0]
    finally:
        server.close()


def test_a_coordinator_sends_nobody_where_a_name_leads_and_starts_no_crowd() -> None:
    answered: list[messages.Done] = []

    async def says(link: Wire) -> None:
        for number in range(200):
            task = messages.Task(id=f"{number}", do="link", deadline_s=9, address="127.0.0.7", port=free_port(), udp=9, token="t")
            link.send(messages.plain(task))
        link.send(messages.plain(messages.Task(id="name", do="link", deadline_s=9, address="localhost", port=1)))
        while True:
            said = messages.from_node(await link.receive(20))
            if isinstance(said, messages.Done):
                answered.append(said)
                if len(answered) == 16:
                    link.send(messages.plain(messages.Task(id="name", do="link", deadline_s=9, address="localhost", port=1)))

    async def work() -> None:
        own = job(1, (free_port(),), b"")
        async with false_coordinator(own, says), speaking(own):
            await until(lambda: len(answered) >= 17)
        assert len(answered) == 17, "200 at once before"
        assert [said.value for said in answered if said.id == "name"] == [None]

    ran(work)


@pytest.mark.parametrize("text", [DEEP, b'{"is": "table", "nodes": 3}', b'{"is": "task", "id": 1}', b'{"is": "redirect"}'])
def test_a_coordinator_that_makes_no_sense_is_left(text: bytes) -> None:
    """Before, the node did nothing any more until its time was up."""

    async def says(link: Wire) -> None:
        signed(link, text)
        await link.receive(20)

    async def work() -> None:
        own = job(1, (free_port(),), b"")
        async with false_coordinator(own, says), speaking(own) as agent:
            await until(lambda: agent.coordinator is not None)
            assert 0 in agent.lost

    ran(work)


def test_a_coordinator_holds_no_rank_beyond_its_time() -> None:
    asked: list[dict[str, Any]] = []

    async def work() -> None:
        own = job(1, (free_port(),), b"")
        async with speaking(own, 20) as agent:
            rank = agent.ranks.here[0]
            rank.wire.send = asked.append  # type: ignore[method-assign, assignment]
            tasks: dict[int, dict[str, Any]] = {0: {"do": "compute"}}
            waits = asyncio.ensure_future(agent.ranks.ask(messages.Task(id="1", do="ranks", deadline_s=86400, tasks=tasks)))
            crowd = {"do": "collective", "rank": 0, "world": 10**9, "store": [HERE, 1]}
            named = {"do": "collective", "rank": 0, "world": 2, "store": ["example.org", 1]}
            for task in (crowd, named, {"do": "rm"}, {}):
                assert await agent.ranks.ask(messages.Task(id="2", do="ranks", deadline_s=1, tasks={0: task})) == {}
            await until(lambda: bool(asked))
            waits.cancel()
        assert [fields["id"] for fields in asked if fields["is"] == "task"] == ["1"]
        assert asked[0]["deadline_s"] < 30

    ran(work)
