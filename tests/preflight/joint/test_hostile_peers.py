"""What a hostile peer can do to the process that speaks for a node: with and without the job's secret, as a stranger, a node and a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import socket
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from torchtune_sys.host.peers import local, wire
from torchtune_sys.host.peers.links import DATAGRAMS, LinkServer
from torchtune_sys.host.peers.wire import Gone, Wire, call
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.agent import Agent
from torchtune_sys.preflight.joint.coordinator import Times
from torchtune_sys.preflight.joint.job import Job

SECRET = b"the job's own"
HERE = "127.0.0.1"
WHO = messages.plain(messages.Who())


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("", 0))
        return int(held.getsockname()[1])


def job(node: int, ports: tuple[int, ...], secret: bytes = SECRET) -> Job:
    key = f"test-{os.getpid()}-{time.monotonic_ns()}"
    place = {"rank": node, "world": 3, "local": 0, "locals_": 1, "node": node, "nodes": 3}
    return Job(**place, names=(HERE, "192.0.2.1", "192.0.2.2"), master=HERE, ports=ports, secret=secret, key=key)


@contextlib.asynccontextmanager
async def speaking(own: Job, budget_s: float = 60) -> AsyncIterator[Agent]:
    """A node's process, here in this one, with one rank that says nothing."""
    agent = Agent(own, Times(time.monotonic(), budget_s, budget_s / 2))
    listener = local.claim(f"{own.key}-{own.node}")
    assert listener is not None
    running = asyncio.ensure_future(agent.run(listener))
    rank = local.RankLink.connect(f"{own.key}-{own.node}", 5)
    rank.send({"is": "rank", "rank": own.rank, "local": 0})
    try:
        await until(lambda: agent.control_port > 0 and bool(agent.ranks))
        yield agent
    finally:
        running.cancel()
        if agent.coordinator is not None:
            agent.coordinator.redirect(-1, 0)
        rank.close()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    end_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end_s, "it did not come"
        await asyncio.sleep(0.02)


def ran(work: Callable[[], Awaitable[None]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of connections that the other side broke off
        asyncio.run(work())  # type: ignore[arg-type]
        gc.collect()


async def answers(agent: Agent, secret: bytes = SECRET) -> bool:
    """Whether a node of the job is heard."""
    link = await call(HERE, agent.control_port, secret, 20)
    link.send(WHO)
    found = messages.me(await link.receive(20))
    link.close()
    return found.node == agent.job.node


async def greeted(agent: Agent) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Anybody can come as far as this."""
    reader, writer = await asyncio.open_connection(HERE, agent.control_port)
    writer.write(b"torchtune-sys/peers/2 " + b"0" * 32 + b"\n")
    await asyncio.wait_for(reader.readline(), 20)
    return reader, writer


async def is_closed(reader: asyncio.StreamReader, within_s: float) -> bool:
    try:
        while await asyncio.wait_for(reader.read(1 << 16), within_s):
            continue
    except ConnectionError:
        return True
    except asyncio.TimeoutError:
        return False
    return True


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


# -- strangers -------------------------------------------------------------------------------------------------------------------------


def test_a_stranger_who_says_nothing_is_not_waited_for() -> None:
    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            reader, _writer = await greeted(agent)
            assert await is_closed(reader, 15), "60 s before"
            assert await answers(agent)

    ran(work)


def test_a_line_of_a_stranger_that_does_not_end_is_not_kept() -> None:
    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            reader, writer = await greeted(agent)
            begun_s = time.monotonic()
            writer.write(b"x" * (64 << 10))
            assert await is_closed(reader, 15)
            assert time.monotonic() - begun_s < wire.HANDSHAKE_S, "closed for its length, not for its time"

    ran(work)


def test_connections_from_one_address_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtune_sys.preflight.joint.agent._FROM_ONE", 8)
    monkeypatch.setattr(wire, "HANDSHAKE_S", 60)
    monkeypatch.setattr(wire.handshake, "__kwdefaults__", {"timeout_s": 60})

    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            held = []
            for _ in range(8):
                held.append(await asyncio.open_connection(HERE, agent.control_port, local_addr=("127.0.0.2", 0)))
            reader, writer = await asyncio.open_connection(HERE, agent.control_port, local_addr=("127.0.0.2", 0))
            assert await is_closed(reader, 20)
            assert await answers(agent)
            for _reader, each in [*held, (reader, writer)]:
                each.close()

    ran(work)


def test_who_does_not_know_the_secret_is_told_nothing() -> None:
    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            for secret in (b"", b"another", agent.job.key.encode()):
                link = await call(HERE, agent.control_port, secret, 20)
                link.send(WHO)
                with pytest.raises(Gone, match=r"closed|reset|Connection"):
                    await link.receive(20)

    ran(work)


def test_what_a_node_said_cannot_be_said_again() -> None:
    """The bytes of a whole conversation, sent once more; and the node's own lines, sent back to it."""

    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            heard: list[bytes] = []

            async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                to_reader, to_writer = await asyncio.open_connection(HERE, agent.control_port)

                async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter, kept: list[bytes]) -> None:
                    while data := await source.read(1 << 16):
                        kept.append(data)
                        to.write(data)

                await asyncio.wait(
                    [asyncio.ensure_future(pump(reader, to_writer, heard)), asyncio.ensure_future(pump(to_reader, writer, []))],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                writer.close()
                to_writer.close()

            spy = await asyncio.start_server(between, HERE, 0)
            link = await call(HERE, spy.sockets[0].getsockname()[1], SECRET, 20)
            link.send(WHO)
            assert messages.me(await link.receive(20)).node == 0
            link.close()
            await until(lambda: len(b"".join(heard).splitlines()) == 2)
            spy.close()
            reader, writer = await asyncio.open_connection(HERE, agent.control_port)
            writer.write(b"".join(heard))
            assert len((await asyncio.wait_for(reader.read(), 20)).splitlines()) == 1, "a greeting, and no answer"
            reader, writer = await asyncio.open_connection(HERE, agent.control_port)
            writer.write(b"".join(heard).splitlines(keepends=True)[0])
            writer.write(await asyncio.wait_for(reader.readline(), 20))
            assert await is_closed(reader, 20)
            assert await answers(agent)

    ran(work)


def test_a_node_s_own_lines_are_no_answer() -> None:
    """Who sends back what a node says, with the node's own number, speaks for nobody."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(echo, HERE, 0)
        link = await call(HERE, server.sockets[0].getsockname()[1], SECRET, 20)
        link.send(WHO)
        with pytest.raises(Gone, match="not signed"):
            await link.receive(20)
        link.close()
        server.close()

    ran(work)


# -- tests of connections ----------------------------------------------------------------------------------------------------------------


def test_the_ports_of_the_tests_give_a_stranger_nothing() -> None:
    async def work() -> None:
        server = LinkServer()
        await server.start()
        reader, writer = await asyncio.open_connection(HERE, server.port)
        writer.write(b"ttls".ljust(16) + b"\1" + b"x" * 1000)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.sendto(b"ttls token 1", (HERE, server.udp_port))
            udp.sendto(f"{server.mark} mine 1".encode(), (HERE, server.udp_port))
        await until(lambda: server.counted("mine") == 1)
        assert server.counted("token") == 0
        server.stop()

    ran(work)


def test_who_sends_and_never_reads_is_not_kept_for() -> None:
    """An echo that nobody takes back would grow with what is sent."""

    async def work() -> None:
        server = LinkServer()
        await server.start()
        reader, writer = await asyncio.open_connection(HERE, server.port)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(server.mark.encode() + b"\1")
        sent = 0
        with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
            while sent < 256 << 20:
                writer.write(b"x" * (1 << 20))
                await asyncio.wait_for(writer.drain(), 3)
                sent += 1 << 20
        assert sent < 64 << 20
        writer.transport.abort()
        server.stop()

    ran(work)


def test_datagrams_fill_no_memory() -> None:
    async def work() -> None:
        server = LinkServer()
        await server.start()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for number in (1, 1, 2, DATAGRAMS, 10**9, 10**100):
                udp.sendto(f"{server.mark} t {number}".encode(), (HERE, server.udp_port))
            for data in (
                b"",
                b" " * 200,
                server.mark.encode(),
                f"{server.mark} t -1".encode(),
                f"{server.mark} {'t' * 99} 1".encode(),
            ):
                udp.sendto(data, (HERE, server.udp_port))
            udp.sendto(f"{server.mark} last 1".encode(), (HERE, server.udp_port))
        await until(lambda: server.counted("last") == 1)
        assert (server.counted("t"), server.counted("t" * 99)) == (2, 0)
        server.stop()

    ran(work)


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
            with pytest.raises(Gone, match="more than a node has to say"):
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
            rank = agent.ranks[0]
            rank.wire.send = asked.append  # type: ignore[method-assign, assignment]
            tasks: dict[int, dict[str, Any]] = {0: {"do": "compute"}}
            waits = asyncio.ensure_future(agent._ask_ranks(messages.Task(id="1", do="ranks", deadline_s=86400, tasks=tasks)))
            crowd = {"do": "collective", "rank": 0, "world": 10**9, "store": [HERE, 1]}
            named = {"do": "collective", "rank": 0, "world": 2, "store": ["example.org", 1]}
            for task in (crowd, named, {"do": "rm"}, {}):
                assert await agent._ask_ranks(messages.Task(id="2", do="ranks", deadline_s=1, tasks={0: task})) == {}
            await until(lambda: bool(asked))
            waits.cancel()
        assert [fields["id"] for fields in asked if fields["is"] == "task"] == ["1"]
        assert asked[0]["deadline_s"] < 30

    ran(work)
