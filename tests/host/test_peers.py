"""How nodes speak to each other: who does not know the job's secret can neither speak, nor change, repeat or leave out a line."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from torchtune_sys.host.peers import detached, links, local
from torchtune_sys.host.peers.wire import Gone, OtherRelease, Wire, call, handshake, in_small_packets

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Connections are left open on purpose when a loop ends."""
SECRET = b"of the job"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def finished(work: Callable[[], Awaitable[None]]) -> None:
    """Run it, and let what was closed end before the loop does."""

    async def whole() -> None:
        await work()
        for _ in range(100):
            await asyncio.sleep(0.02)
            if len(asyncio.all_tasks()) == 1:
                break
        await asyncio.sleep(0.1)

    asyncio.run(whole())


async def server(serve: Serve) -> tuple[asyncio.AbstractServer, int]:
    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    return listening, listening.sockets[0].getsockname()[1]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(Gone):
        wire = await handshake(reader, writer, SECRET, first=False)
        while True:
            wire.send(await wire.receive(5))
    writer.close()


def test_lines_come_as_they_were_sent() -> None:
    async def go() -> None:
        listening, port = await server(echo)
        wire = await call("127.0.0.1", port, SECRET, 5)
        for number in range(3):
            wire.send({"n": number, "text": "ä\n"})
            assert await wire.receive(5) == {"n": number, "text": "ä\n"}
        assert wire.unacknowledged() == 0
        wire.close()
        listening.close()

    finished(go)


def test_another_secret_is_no_secret() -> None:
    async def go() -> None:
        listening, port = await server(echo)
        wire = await call("127.0.0.1", port, b"guessed", 5)
        wire.send({"is": "join"})
        with pytest.raises(Gone):
            await wire.receive(5)
        wire.close()
        listening.close()

    finished(go)


@pytest.mark.parametrize("what", ["changed", "repeated", "left out"])
def test_what_is_changed_repeated_or_left_out_on_the_way_is_seen(what: str) -> None:
    """Somebody between the two passes the greeting on, and meddles with the lines."""
    heard: list[str] = []

    async def receiving(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            wire = await handshake(reader, writer, SECRET, first=False)
            while True:
                heard.append((await wire.receive(5))["text"])
        except Gone as error:
            heard.append(f"gone: {error}")
        writer.close()

    async def go() -> None:
        listening, port = await server(receiving)

        async def meddling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward, further = await asyncio.open_connection("127.0.0.1", port)
            further.write(await reader.readline())
            writer.write(await onward.readline())
            first, second = await reader.readline(), await reader.readline()
            further.write({"changed": first.replace(b"one", b"six"), "repeated": first + first, "left out": second}[what])
            await further.drain()
            await asyncio.sleep(0.3)
            writer.write_eof()
            further.close()
            writer.close()

        between, place = await server(meddling)
        wire = await call("127.0.0.1", place, SECRET, 5)
        wire.send({"text": "one"})
        wire.send({"text": "two"})
        for _ in range(50):
            await asyncio.sleep(0.1)
            if heard and heard[-1].startswith("gone"):
                break
        wire.close()
        listening.close()
        between.close()

    finished(go)
    assert heard == ([*(["one"] if what == "repeated" else []), "gone: a line that was not signed with the job's secret"])


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 600, b"torchtune-sys/peers/1 short\n"])
def test_another_program_at_the_port_is_told_from_a_node(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def go() -> None:
        listening, port = await server(serve)
        with pytest.raises(Gone):
            await call("127.0.0.1", port, SECRET, 5)
        listening.close()

    finished(go)


def test_who_says_nothing_is_not_waited_for() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def go() -> None:
        listening, port = await server(serve)
        began = time.monotonic()
        with pytest.raises(Gone):
            await call("127.0.0.1", port, SECRET, 5)
        assert time.monotonic() - began < 30
        listening.close()

    finished(go)


def test_a_process_that_answers_late_is_no_delay_of_the_link() -> None:
    """As on a host whose CPUs others have: the kernel's own answers say how far the other host is."""

    class Late(links.LinkServer):
        async def _answer(self, kind: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while (data := await reader.read(1 << 18)) and len(data) <= links.SMALL:
                await asyncio.sleep(0.02)
                writer.write(data)

    async def go() -> None:
        receiver = Late()
        await receiver.start()
        found = await links.test("127.0.0.1", receiver.port, receiver.udp_port, receiver.mark, "token")
        assert 0 < found["small_s"] < 0.01
        receiver.stop()

    finished(go)


def test_a_connection_is_measured_and_its_datagrams_are_counted() -> None:
    async def go() -> None:
        receiver = links.LinkServer()
        await receiver.start()
        found = await links.test("127.0.0.1", receiver.port, receiver.udp_port, receiver.mark, "token")
        assert (found["connect"], found["beyond"], found["sent"]) == ("ok", True, links.DATAGRAMS)
        assert found["small_s"] > 0
        assert min(found["rates"]) > 0
        await asyncio.sleep(0.2)
        assert receiver.counted("token") + receiver.overflowed() == links.DATAGRAMS
        receiver.stop()

    finished(go)


def test_a_connection_runs_until_one_run_is_fast_enough() -> None:
    async def go() -> None:
        receiver = links.LinkServer()
        await receiver.start()
        where = "127.0.0.1", receiver.port, receiver.udp_port, receiver.mark
        enough = await links.test(*where, "one", enough_rate=1.0)
        never = await links.test(*where, "two", enough_rate=1e15)
        receiver.stop()
        assert len(enough["rates"]) == links._RUNS
        assert len(never["rates"]) > links._RUNS

    finished(go)


def test_a_port_at_which_nobody_listens_refuses() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        found = asyncio.run(links.test("127.0.0.1", held.getsockname()[1], 9, "mark", "token"))
    assert found["connect"] == "refused"


def test_only_one_process_of_a_node_gets_the_name() -> None:
    key = f"test-{os.getpid()}"
    first = local.claim(key)
    assert first is not None
    assert local.claim(key) is None
    first.close()


def test_a_process_of_another_user_does_not_speak_for_the_node(tmp_path: object) -> None:
    """Abstract names are for whoever comes first."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    key = f"squat-{os.getpid()}"
    program = (
        "import os, socket, sys, time; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1].replace('@', chr(0)));"
        " s.listen(); print('ready', flush=True); time.sleep(60)"
    )
    name = f"@torchtune-sys-preflight-0-{key}"
    with subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(Gone, match="user 65534"):
            local.RankLink.connect(key, 1.0)
        other.kill()


def test_the_spare_process_ends_at_its_deadline_whatever_it_does() -> None:
    pid = detached.start(lambda: time.sleep(600), 0.5)
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.WTERMSIG(status) == 14
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


def test_a_wire_says_when_the_other_side_takes_nothing() -> None:
    """A peer whose window is full acknowledges no more: what is sent stays here, as with a host that is gone."""

    async def go() -> None:
        over = asyncio.Event()

        async def deaf(_reader: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            await over.wait()
            other.transport.abort()

        listening, port = await server(deaf)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        wire = Wire(reader, writer, (b"a", b"b"))
        writer.write(b"x" * (64 << 20))
        found = 0
        for _ in range(200):
            await asyncio.sleep(0.05)
            found = wire.unacknowledged()
            if found:
                break
        assert found > 0
        over.set()
        wire.abort()
        listening.close()

    finished(go)


def test_another_release_is_known_by_its_greeting_on_both_sides() -> None:
    async def go() -> None:
        refused: list[Exception] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handshake(reader, writer, b"s", first=False)
            except OtherRelease as error:
                refused.append(error)
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        writer.write(b"torchtune-sys/peers/1 " + b"0" * 32 + b"\n")
        assert (await reader.readline()).startswith(b"torchtune-sys/peers/")
        await asyncio.sleep(0.1)
        assert len(refused) == 1
        writer.close()
        listening.close()

    finished(go)


def test_a_transfer_that_is_reset_or_falls_silent_is_told_from_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_SILENT_S", 0.3)

    async def cut(how: str) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(100_000)
            if how == "reset":
                writer.transport.abort()
            elif how == "silent":  # the kernel drops all that comes to this socket
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, drop_all)
            await asyncio.sleep(0.8)
            writer.close()

        rule = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RET, 0, 0, 0))
        drop_all = struct.pack("HP", 1, ctypes.addressof(rule))
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16)
        found = await links.rates_of("127.0.0.1", listening.sockets[0].getsockname()[1], "0" * 16)
        listening.close()
        await asyncio.sleep(0.8)
        return found[1]

    told = {how: asyncio.run(cut(how)) for how in ("reset", "silent", "reads nothing")}
    assert told == {"reset": "reset", "silent": "silent", "reads nothing": ""}, (
        "the network is well where the other process waits for a CPU"
    )


_SO_ATTACH_FILTER, _BPF_RET = 26, 0x06


def test_a_transfer_that_is_given_up_has_ended_before_its_socket_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_SILENT_S", 0.05)
    ended: list[str] = []

    async def send() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("send")

    async def go() -> None:
        ours, _theirs = socket.socketpair()
        with ours, _theirs, pytest.raises(asyncio.TimeoutError):
            await links._while_it_moves(send(), links.Arrivals(ours))
        assert ended == ["send"]

    asyncio.run(go())


def test_what_nodes_say_goes_in_packets_that_every_way_carries() -> None:
    async def go() -> None:
        listening, port = await server(echo)
        in_small_packets(listening)
        wire = await call("127.0.0.1", port, SECRET, 5)
        held = wire.streams()[1].get_extra_info("socket")
        assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1200
        wire.send({"text": "hello"})
        assert (await wire.receive(5))["text"] == "hello"
        wire.send({"text": "x" * 100_000})
        assert len((await wire.receive(5))["text"]) == 100_000
        wire.close()
        listening.close()

    finished(go)
