"""The tests of one connection, from one node to another: a packet, a message beyond the MTU, megabytes, and datagrams that are counted where they
arrive.

TCP needs both directions for every step, so it cannot tell which one is cut: datagrams can, since the receiver says how many came.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import time
from typing import Any

CONNECT_S = 2.5
"""Time for a second SYN after one that was lost (sent after 1 s, RFC 6298), not for a third."""
SMALL, BEYOND_MTU, BULK = 64, 48 << 10, 4 << 20
"""Bytes: one packet; more than any MTU (65,535 on IPoIB in connected mode) of Ethernet; enough for the rate of a fast link."""
_ECHOES = 20
_ECHO_S, _BEYOND_S, _BULK_S = 3.0, 3.0, 8.0
_RUNS = 2
DATAGRAMS = 200
_PAUSE_S = 0.0005
_SO_MEMINFO, _DROPS = 55, 8
_TCP_INFO_RETRANSMITS = 100
"""Offset of tcpi_total_retrans in struct tcp_info (linux/tcp.h)."""
_HEADER = struct.Struct(">4sB")
_ECHO, _SINK = 1, 2
_MARK = b"ttls"


class LinkServer:
    """Where other nodes try their connections to this one: a port and a datagram port that the kernel draws, as gloo and NCCL have theirs drawn."""

    def __init__(self) -> None:
        self.port = self.udp_port = 0
        self.counted: dict[str, dict[int, int]] = {}
        """Numbers of the datagrams that came, by the token of a test."""
        self._server: asyncio.AbstractServer | None = None
        self._udp: socket.socket | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, None, 0, family=socket.AF_INET)
        self.port = self._server.sockets[0].getsockname()[1]
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setblocking(False)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        udp.bind(("", 0))
        self._udp, self.udp_port = udp, udp.getsockname()[1]
        asyncio.get_running_loop().add_reader(udp.fileno(), self._count)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._udp is not None:
            asyncio.get_running_loop().remove_reader(self._udp.fileno())
            self._udp.close()

    def overflowed(self) -> int:
        """Datagrams that arrived, and that this process was too slow for (SO_MEMINFO)."""
        if self._udp is None:
            return 0
        try:
            return int(struct.unpack_from("I", self._udp.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36), 4 * _DROPS)[0])
        except (OSError, struct.error):
            return 0

    def _count(self) -> None:
        assert self._udp is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self._udp.recv(2048)
                words = data.split(b" ", 3)
                if len(words) == 4 and words[0] == _MARK and words[3].isdigit() and len(self.counted) < 65536:
                    seen = self.counted.setdefault(words[1].decode("ascii", "replace"), {})
                    seen[int(words[3])] = 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give back what comes, or take it and say when all is there. Data is counted, never looked at."""
        try:
            mark, kind = _HEADER.unpack(await asyncio.wait_for(reader.readexactly(_HEADER.size), _BULK_S))
            if mark != _MARK:
                return
            held = writer.get_extra_info("socket")
            held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            left = BULK if kind == _SINK else 0
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s:
                data = await asyncio.wait_for(reader.read(1 << 18), 15)
                if not data:
                    return
                if kind == _ECHO:
                    writer.write(data)
                    continue
                left -= len(data)
                if left <= 0:
                    writer.write(b"!")
                    left += BULK
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, struct.error):
            return
        finally:
            writer.close()


async def test(address: str, port: int, udp_port: int, token: str, node: int, *, short: bool = False) -> dict[str, Any]:
    """One direction. ``short``: only whether a connection is made, where the rest is known to fail.

    Answers ``connect`` (ok, refused, time-out, unreachable), ``small_s`` (least time there and back), ``beyond`` (whether the message beyond
    the MTU came back), ``rates`` (bytes per second, of two runs), ``retransmits``, ``sent`` (datagrams).
    """
    found: dict[str, Any] = {"sent": await _datagrams(address, udp_port, token, node)}
    found["connect"], held = await _connected(address, port)
    if held is None or short:
        if held is not None:
            held.close()
        return found
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(held, _HEADER.pack(_MARK, _ECHO))
        found["small_s"] = await _echo(held, SMALL, _ECHOES, _ECHO_S)
        if found["small_s"] is not None:
            beyond = await _echo(held, BEYOND_MTU, 2, _BEYOND_S)
            found["beyond"] = beyond is not None
    except OSError as error:
        found["error"] = error.strerror or str(error)
    finally:
        found["retransmits"] = _retransmits(held)
        held.close()
    if found.get("beyond"):
        found["rates"] = await _rates(address, port)
    return found


async def _datagrams(address: str, port: int, token: str, node: int) -> int:
    sent = 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setblocking(False)
        for number in range(DATAGRAMS):
            with contextlib.suppress(OSError):  # an answer by ICMP to an earlier one, or a full queue
                udp.sendto(b"%s %s %d %d" % (_MARK, token.encode(), node, number), (address, port))
                sent += 1
            if number % 5 == 4:
                await asyncio.sleep(5 * _PAUSE_S)
    return sent


async def _connected(address: str, port: int) -> tuple[str, socket.socket | None]:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setblocking(False)
    try:
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(held, (address, port)), CONNECT_S)
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return "ok", held
    except asyncio.TimeoutError:
        word = "time-out"
    except ConnectionRefusedError:
        word = "refused"
    except OSError as error:
        word = "unreachable" if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH) else (error.strerror or str(error))
    held.close()
    return word, None


async def _echo(held: socket.socket, size: int, times: int, within_s: float) -> float | None:
    """The least time there and back; None where not all came back in time."""
    loop = asyncio.get_running_loop()
    least = 1e9
    until_s = time.monotonic() + within_s
    data = b"x" * size
    for _ in range(times):
        began = time.monotonic()
        try:
            sending = asyncio.ensure_future(loop.sock_sendall(held, data))
            left = size
            while left:
                part = await asyncio.wait_for(loop.sock_recv(held, left), max(until_s - time.monotonic(), 0.01))
                if not part:
                    sending.cancel()
                    return None
                left -= len(part)
            await sending
        except (asyncio.TimeoutError, OSError):
            return None
        least = min(least, time.monotonic() - began)
    return least


async def _rates(address: str, port: int) -> list[float]:
    """Of each run. One that does not end in time had less than half of what would have ended it."""
    held = (await _connected(address, port))[1]
    if held is None:
        return []
    loop = asyncio.get_running_loop()
    rates: list[float] = []
    data = bytes(BULK)
    try:
        await loop.sock_sendall(held, _HEADER.pack(_MARK, _SINK))
        for _ in range(_RUNS):
            began = time.monotonic()
            await asyncio.wait_for(loop.sock_sendall(held, data), _BULK_S)
            if not await asyncio.wait_for(loop.sock_recv(held, 1), _BULK_S):
                break
            taken = time.monotonic() - began
            rates.append(BULK / max(taken, 1e-6))
            if taken > 1:
                break
    except (asyncio.TimeoutError, OSError):
        rates = rates or [BULK / _BULK_S / 2]
    finally:
        held.close()
    return rates


def _retransmits(held: socket.socket) -> int:
    try:
        return int(struct.unpack_from("I", held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), _TCP_INFO_RETRANSMITS)[0])
    except (OSError, struct.error):
        return 0
