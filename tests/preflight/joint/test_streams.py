"""One port of both families, and which of them a name is reached by."""

from __future__ import annotations

import asyncio
import socket

import pytest

from torchtune_sys.host.peers import links
from torchtune_sys.host.peers.streams import bound, connect, listen

pytestmark = pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")


async def _greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"here\n")
    writer.close()


def test_both_families_answer_at_the_port_that_was_drawn_and_at_one_that_was_asked_for() -> None:
    async def answers() -> list[bytes]:
        found, drawn = [], 0
        for _ in range(2):
            servers, drawn = await listen(_greet, drawn, 16)
            for name in ("127.0.0.1", "::1"):
                reader, writer = await connect(name, drawn, 512)
                found.append(await reader.readline())
                writer.close()
            for server in servers:
                server.close()
                await server.wait_closed()
        return found

    assert asyncio.run(answers()) == [b"here\n"] * 4


def test_datagrams_of_both_families_come_to_one_port() -> None:
    held = bound(socket.SOCK_DGRAM)
    assert len({each.getsockname()[1] for each in held}) == 1
    for each, family, address in zip(held, (socket.AF_INET, socket.AF_INET6), ("127.0.0.1", "::1"), strict=True):
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.sendto(family.name.encode(), (address, each.getsockname()[1]))
        each.setblocking(True)
        each.settimeout(5)
        assert each.recv(64).decode() == family.name
        each.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_link_is_tested_in_either_family(address: str) -> None:
    async def tested() -> tuple[dict[str, object], int]:
        server = links.LinkServer()
        await server.start()
        found = await links.test(address, server.port, server.udp_port, server.mark, "one")
        counted = server.counted("one")
        server.stop()
        return found, counted

    found, counted = asyncio.run(tested())
    assert (found["connect"], found["beyond"], found["flows"], counted) == (
        "ok",
        True,
        (links.FLOWS, links.FLOWS),
        links.DATAGRAMS,
    )


def test_many_who_come_at_once_leave_others_a_turn() -> None:
    """All that waited were taken before anything else was done, and those that came meanwhile: a user who connects in a loop held every deadline up, 40 s long."""
    came, most = 0, 0

    async def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.close()

    async def work() -> None:
        nonlocal most
        servers, port = await listen(count, 0, 512)
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
        while came < 300:
            before = came
            await asyncio.sleep(0)
            most = max(most, came - before)
        for each in (*servers, *callers):
            each.close()

    asyncio.run(asyncio.wait_for(work(), 30))
    assert most < 50
