"""What a stranger, or whoever reaches the ports of the tests, can do to the process that speaks for a node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import tracemalloc

import msgspec
import pytest

from preflight.joint.hostile import HERE, SECRET, WHO, answers, free_port, is_closed, job, ran, speaking, until
from torchtune_sys.host.peers import links, wire
from torchtune_sys.host.peers.links import DATAGRAMS, LinkServer
from torchtune_sys.host.peers.wire import Gone, call
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.agent import Agent


async def greeted(agent: Agent) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Anybody can come as far as this."""
    reader, writer = await asyncio.open_connection(HERE, agent.control_port)
    writer.write(b"torchtune-sys/peers/2 " + b"0" * 32 + b"\n")
    await asyncio.wait_for(reader.readline(), 20)
    return reader, writer


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


IDLE = {"one other": ("127.0.0.2",), "its own": (HERE,), "many of one host": tuple(f"127.0.0.{at}" for at in range(2, 12))}


async def held_idle(port: int, addresses: tuple[str, ...], each: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connections on which nobody says anything."""
    opened = []
    for _ in range(each):
        for address in addresses:
            opened.append(await asyncio.open_connection(HERE, port, local_addr=(address, 0)))
    await asyncio.sleep(0.2)
    return opened


@pytest.mark.parametrize("addresses", IDLE.values(), ids=IDLE)
def test_idle_connections_keep_no_node_out(addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user of a node has them, with its address: the node itself was not heard any more. With ten of 127.0.0.0/8 no node was."""
    monkeypatch.setattr("torchtune_sys.preflight.joint.agent._CONNECTIONS", 8)
    monkeypatch.setattr(wire, "HANDSHAKE_S", 60)
    monkeypatch.setattr(wire.handshake, "__kwdefaults__", {"timeout_s": 60})

    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            idle = await held_idle(agent.control_port, addresses, 9)
            assert await is_closed(idle[0][0], 20), "who waited longest goes"
            assert await answers(agent)
            for _reader, each in idle:
                each.close()

    ran(work)


@pytest.mark.parametrize("kind", ["asks who is there", "goes on through us"])
def test_nodes_that_come_from_one_address_are_all_heard(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a gateway, in one network of IPv6 (a /64 counts as one host), or through one node: of a thousand, 744 were broken off while they waited. Who goes on through us
    is none of those who did not choose yet."""
    nodes = 300
    if kind == "goes on through us":
        monkeypatch.setattr("torchtune_sys.preflight.joint.agent._CONNECTIONS", nodes // 2)

    async def work() -> None:
        own = msgspec.structs.replace(job(0, (free_port(),)), nodes=nodes)
        spared = await asyncio.start_server(lambda _reader, _writer: None, HERE, 0)
        async with speaking(own) as agent:
            agent.map.table[1] = (HERE, spared.sockets[0].getsockname()[1])
            held = []
            for _ in range(nodes):
                link = await call(HERE, agent.control_port, SECRET, 20)
                link.send(WHO if kind == "asks who is there" else messages.plain(messages.Relay(to=1)))
                await link.receive(20)
                held.append(link)
            broken = [await is_closed(link.streams()[0], 0.001) for link in held]
            assert broken == [False] * nodes
            assert await answers(agent)
            for link in held:
                link.abort()
        spared.close()

    ran(work)


@pytest.mark.parametrize("addresses", IDLE.values(), ids=IDLE)
def test_idle_connections_make_no_link_bad(addresses: tuple[str, ...]) -> None:
    async def work() -> None:
        server = LinkServer()
        await server.start()
        idle = await held_idle(server.port, addresses, links._CONNECTIONS // len(addresses) + 1)
        found = await links.test(HERE, server.port, server.udp_port, server.mark, "t")
        assert found["beyond"] and len(found["rates"]) >= 3 and not found["cut"], found
        for _reader, each in idle:
            each.transport.abort()
        server.stop()

    ran(work)


GREETINGS = (
    b"",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 500,
    b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n",
    b"SSH-2.0-x\r\n",
    b"\0" * 511,
    b"torchtune-sys/peers/2 " + b"\xff" * 32 + b"\n",
    b"torchtune-sys/peers/999999999999999999999 0\n\n\n",
)
"""Of TLS, HTTP, ssh, and nearly ours."""


def test_other_protocols_resets_and_half_closed_connections_cost_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with speaking(job(0, (free_port(),))) as agent:
            for number in range(140):
                with socket.create_connection((HERE, agent.control_port), 20) as stranger:
                    stranger.sendall(GREETINGS[number % len(GREETINGS)])
                    if number % 2:
                        stranger.shutdown(socket.SHUT_WR)
                    else:  # closed with a reset
                        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                if number % 20 == 0:
                    await asyncio.sleep(0.01)
            assert await answers(agent)
            assert not caplog.records

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


def test_transfers_that_only_begin_fill_no_memory() -> None:
    """Each had 384 KiB to compare with: 200 MB where a node opened all that it is let."""

    async def work() -> None:
        server = LinkServer()
        await server.start()
        begun = []
        tracemalloc.start()
        for _ in range(40):
            reader, writer = await asyncio.open_connection(HERE, server.port)
            writer.write(server.mark.encode() + b"\2" + b"x" * 100)
            begun.append((reader, writer))
        await asyncio.sleep(0.5)
        taken, _peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken < 6 << 20, taken
        for _reader, writer in begun:
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
