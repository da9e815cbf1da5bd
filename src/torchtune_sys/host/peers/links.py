"""The tests of one connection, from one node to another: a packet, a message beyond the MTU, megabytes that are compared with what was sent, and
datagrams that are counted where they arrive.

TCP needs both directions for every step, so it cannot tell which one is cut: datagrams can, since the receiver says how many came.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import os
import random
import socket
import struct
import time
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, TypeVar

from torchtune_sys.host.peers.addresses import family_of
from torchtune_sys.host.peers.streams import bound, listen
from torchtune_sys.host.peers.tcp_info import tcp_info
from torchtune_sys.host.peers.wire import Door

CONNECT_S = 2.5
"""Time for a second SYN after one that was lost (sent after 1 s, RFC 6298), not for a third."""
SMALL, BEYOND_MTU, BULK = 64, 48 << 10, 4 << 20
"""Bytes: one packet; more than any MTU (65,535 on IPoIB in connected mode) of Ethernet; enough for the rate of a fast link."""
_ECHOES = 20
_PIECE, _STRETCH = 128 << 10, BULK // 4
"""Bytes after which the kernel is asked how much has arrived, and over which a rate counts."""
_ECHO_S, _BEYOND_S, _BULK_S = 3.0, 3.0, 8.0
_SILENT_S = 4.0
"""In which TCP sends what was lost four times again (RFC 6298)."""
_RUNS, _RUNS_OF_NARROW = 3, 16
"""The first fills what is a bucket of a shaper or a queue of a switch, and counts as a whole."""
_NARROW_S, _BETWEEN_S = 1.5, 0.02
"""Of the runs of one that looked narrow: none begins later; and a pause, in which processes that wait for a CPU may get it."""
DATAGRAMS = 200
_EVERY_LARGE, _LARGE = 3, 1200
"""Each third is large, in bytes, and below any MTU: what a cable or a port damages it damages by its size."""
_PAUSE_S = 0.0005
FLOWS = 8
"""Connections from other ports of ours: bonded links, and several ways of equal cost, are chosen by the ports, and one of them may be dead."""
_HEADER_S, _SERVED_S = 5.0, 45.0
_SO_MEMINFO, _DROPS = 55, 8
MARK_SIZE = 16
_HEADER = struct.Struct(f">{MARK_SIZE}sB")
_ECHO, _SINK = 1, 2
_ARRIVED, _DAMAGED = b"!", b"?"
"""What the receiver says of each run of a transfer: that all came, and whether it was what had been sent."""
_READ = 256 << 10
_TESTS_AT_MOST, _AT_ONCE = 65536, 512
_ECHOED_AT_MOST = 4 * _ECHOES * (SMALL + BEYOND_MTU)
_CONNECTIONS = 512
"""Connections at once, of strangers, and of who knows the mark. A node tests one other at a time."""


class LinkServer:
    """Where other nodes try their connections to this one: a port and a datagram port that the kernel draws, as gloo and NCCL have theirs drawn."""

    def __init__(self) -> None:
        self.port = self.udp_port = 0
        self.mark = os.urandom(MARK_SIZE // 2).hex()
        """What a test must bear: told to the job's nodes, so that nobody else's bytes are counted or given back."""
        self._counted: dict[str, int] = {}
        """Which datagrams came, a bit each, by the token of a test."""
        self._door, self._tested = Door(_CONNECTIONS), Door(_CONNECTIONS)
        self._servers: list[asyncio.AbstractServer] = []
        self._udp: list[socket.socket] = []

    async def start(self) -> None:
        self._servers, self.port = await listen(self._serve, 0, backlog=_CONNECTIONS)
        self._udp = bound(socket.SOCK_DGRAM)
        self.udp_port = self._udp[0].getsockname()[1]
        for udp in self._udp:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            asyncio.get_running_loop().add_reader(udp.fileno(), self._count, udp)

    def stop(self) -> None:
        for server in self._servers:
            server.close()
        for udp in self._udp:
            asyncio.get_running_loop().remove_reader(udp.fileno())
            udp.close()

    def counted(self, token: str) -> int:
        """Return how many datagrams of one test came, each counted once."""
        return self._counted.get(token, 0).bit_count()

    def overflowed(self) -> int:
        """Return how many datagrams arrived that this process was too slow to take (SO_MEMINFO)."""
        try:
            told = [udp.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36) for udp in self._udp]
            return sum(struct.unpack_from("I", each, 4 * _DROPS)[0] for each in told)
        except (OSError, struct.error):
            return 0

    def _count(self, udp: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for _ in range(_AT_ONCE):  # a flood must not keep us from all else
                data = udp.recv(2 * _LARGE)
                mark, token, number, *_rest = (*data.split(b" "), b"", b"", b"")[:4]
                if (
                    not hmac.compare_digest(mark, self.mark.encode())
                    or len(token) > 64
                    or not number.isdigit()
                    or len(number) > 4
                ):
                    continue
                name, place = token.decode("ascii", "replace"), int(number)
                if place < DATAGRAMS and (name in self._counted or len(self._counted) < _TESTS_AT_MOST):
                    self._counted[name] = self._counted.get(name, 0) | 1 << place

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with self._door.held(writer):
                kind = await asyncio.wait_for(self._kind(reader), _HEADER_S)
            if kind is not None:
                with self._tested.held(writer):
                    await asyncio.wait_for(self._answer(kind, reader, writer), _SERVED_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, struct.error):
            return
        finally:
            writer.close()

    async def _kind(self, reader: asyncio.StreamReader) -> int | None:
        """Return what is to be tested; None to who does not know the mark."""
        mark, kind = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        return int(kind) if hmac.compare_digest(mark, self.mark.encode()) else None

    async def _answer(self, kind: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give back what comes, or take it and say when all is there, and whether it is what everybody sends: TCP's checksum finds no damage before it is made or after it was
        checked, as in a bad adapter or switch that reckons it anew (Stone and Partridge, SIGCOMM 2000)."""
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        came, allowed = 0, _ECHOED_AT_MOST if kind == _ECHO else (_RUNS_OF_NARROW + 1) * BULK
        expected, is_whole = _pieces(), True
        while came < allowed and (data := await asyncio.wait_for(reader.read(_READ), 15)):
            before, came = came, came + len(data)
            if kind == _ECHO:
                writer.write(data)
            else:
                at = before % _PIECE
                is_whole = is_whole and data == expected[at : at + len(data)]
                if before // BULK < came // BULK:
                    writer.write(_ARRIVED if is_whole else _DAMAGED)
                    is_whole = True
            await writer.drain()  # who does not read gets no more


@lru_cache(maxsize=1)
def _piece() -> bytes:
    """Return what transfers consist of, the same on every node."""
    return random.Random(0).randbytes(_PIECE)


@lru_cache(maxsize=1)
def _pieces() -> bytes:
    """Return as many as hold what is read at once, wherever in a piece it begins; one for all connections, of which a peer may open hundreds."""
    return (_READ // _PIECE + 1) * _piece()


async def test(
    address: str, port: int, udp_port: int, mark: str, token: str, *, short: bool = False, enough_rate: float = 0.0
) -> dict[str, Any]:
    """One direction. ``short``: only whether a connection is made, where the rest is known to fail; ``enough_rate`` (bytes per second): more runs until one has it.

    Answers ``connect`` (ok, refused, time-out, unreachable), ``small_s`` (least time there and back, as the processes or the kernel saw it), ``beyond`` (whether the message beyond
    the MTU came back), ``rates`` (bytes per second, of three or more runs, the first as a whole), ``retransmits``, ``resent`` (those of small packets), ``segment`` (bytes of a full one), ``sent`` (datagrams), ``flows`` (further connections at
    the same time: how many were tried, and made), ``repeated`` (those of them whose first packet was sent again), ``cut`` (one that was open was ``reset`` or fell ``silent``), ``damaged`` (runs of which other data arrived than was sent).
    """
    found: dict[str, Any] = {"sent": await _datagrams(address, udp_port, mark, token)}
    (found["connect"], held), (found["flows"], found["repeated"]) = await asyncio.gather(
        _connected(address, port), _flows(address, port)
    )
    if held is None or short:
        if held is not None:
            held.close()
        return found
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(held, _HEADER.pack(mark.encode(), _ECHO))
        before = tcp_info(held).retransmits  # SYNs
        found["small_s"] = _least(await _echo(held, SMALL, _ECHOES, _ECHO_S), held)
        found["resent"] = tcp_info(held).retransmits - before
        if found["small_s"] is not None:
            beyond = await _echo(held, BEYOND_MTU, 2, _BEYOND_S)
            found["beyond"] = beyond is not None
    except ConnectionError:
        found["cut"] = "reset"
    except OSError as error:
        found["error"] = error.strerror or str(error)
    finally:
        found["retransmits"], found["segment"] = tcp_info(held).retransmits, tcp_info(held).segment
        held.close()
    if found.get("beyond"):
        found["rates"], found["cut"], found["damaged"] = await rates_of(address, port, mark, enough_rate)
    return found


async def _datagrams(address: str, port: int, mark: str, token: str) -> int:
    sent = 0
    with contextlib.suppress(OSError), socket.socket(family_of(address), socket.SOCK_DGRAM) as udp:
        udp.setblocking(False)
        for number in range(DATAGRAMS):
            with contextlib.suppress(OSError):  # an answer by ICMP to an earlier one, or a full queue
                data = f"{mark} {token} {number}".encode()
                udp.sendto(data if number % _EVERY_LARGE else data + b" " + b"x" * (_LARGE - 1 - len(data)), (address, port))
                sent += 1
            if number % 5 == 4:
                await asyncio.sleep(5 * _PAUSE_S)
    return sent


async def _flows(address: str, port: int) -> tuple[tuple[int, int], int]:
    """Connect several times at once: how often that was tried, how many connections were made, and how many of these when the kernel had asked again."""
    made = [held for _word, held in await asyncio.gather(*(_connected(address, port) for _ in range(FLOWS))) if held is not None]
    repeated = sum(tcp_info(held).retransmits > 0 for held in made)
    for held in made:
        held.close()
    return (FLOWS, len(made)), repeated


async def _connected(address: str, port: int) -> tuple[str, socket.socket | None]:
    held = socket.socket(family_of(address), socket.SOCK_STREAM)
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
    """Return the least time there and back; None where not all came back in time."""
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
        except ConnectionError:
            raise
        except (asyncio.TimeoutError, OSError):
            return None
        least = min(least, time.monotonic() - began)
    return least


async def rates_of(address: str, port: int, mark: str, enough_rate: float = 0.0) -> tuple[list[float], str, int]:
    """Bytes per second of each run; ``reset`` or ``silent`` where the connection was reset, or nothing arrived any more; and of how many runs other data arrived than
    was sent. A run that does not end in time had less than half of what would have ended it."""
    held = (await _connected(address, port))[1]
    if held is None:
        return [], "", 0
    loop = asyncio.get_running_loop()
    rates: list[float] = []
    data, cut, damaged = _piece(), "", 0
    try:
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _PIECE)
        await loop.sock_sendall(held, _HEADER.pack(mark.encode(), _SINK))
        until_s = time.monotonic() + _NARROW_S
        while len(rates) < (_RUNS_OF_NARROW if max(rates, default=0.0) < enough_rate else _RUNS) and time.monotonic() < until_s:
            arrivals = Arrivals(held)
            for _ in range(BULK // _PIECE):
                await _while_it_moves(loop.sock_sendall(held, data), arrivals)
                arrivals.look()
            told = await _while_it_moves(loop.sock_recv(held, 1), arrivals)
            if not told:
                break
            damaged += told == _DAMAGED
            arrivals.look()
            rates.append(max(arrivals.best() if rates else 0.0, BULK / arrivals.taken_s))
            if arrivals.taken_s > 1:
                break
            if len(rates) >= _RUNS:
                await asyncio.sleep(_BETWEEN_S)
    except ConnectionError:
        cut = "reset"
    except _Silent:
        cut = "silent"
    except (asyncio.TimeoutError, OSError):
        rates = rates or [BULK / _BULK_S / 2]
    finally:
        held.close()
    return rates, cut, damaged


class _Silent(Exception):
    """Nothing arrives any more."""


_T = TypeVar("_T")


async def _while_it_moves(work: Coroutine[Any, Any, _T], arrivals: Arrivals) -> _T:
    """Wait for a part of a transfer as long as the other kernel receives something. Raises TimeoutError and _Silent."""
    task, until_s = asyncio.ensure_future(work), time.monotonic() + _BULK_S
    try:
        while True:
            await asyncio.wait((task,), timeout=_SILENT_S)
            if task.done():
                return task.result()
            before = arrivals.arrived
            arrivals.look()
            if arrivals.arrived == before or time.monotonic() >= until_s:
                raise _Silent if arrivals.arrived == before and arrivals.in_flight else asyncio.TimeoutError
    finally:
        if not task.done():  # until it has ended, the loop has it by the number of its socket, which a new one may get
            task.cancel()
            await asyncio.wait((task,))


class Arrivals:
    """How much the other kernel has received, and when. Processes that wait for a CPU delay most of a transfer, but the network alone delays each part
    of it: so the best stretch tells its rate."""

    def __init__(self, held: socket.socket) -> None:
        self._held = held
        self._looks: list[tuple[float, int, float]] = []
        self.in_flight = 0
        """Segments on their way as of the last look; 0 also where the other process reads nothing, and its kernel takes no more."""
        self.look()

    def look(self) -> None:
        """Ask the kernel. We may have to wait for a CPU on either side of it, so that both times count, each where it makes the rate less."""
        before_s, seen = time.monotonic(), tcp_info(self._held)
        self._looks.append((before_s, seen.delivered * seen.segment, time.monotonic()))
        self.in_flight = seen.in_flight

    @property
    def arrived(self) -> int:
        """Return the bytes that had arrived at the last look."""
        return self._looks[-1][1]

    @property
    def taken_s(self) -> float:
        return max(self._looks[-1][2] - self._looks[0][0], 1e-6)

    def best(self) -> float:
        """Return the bytes per second in the best interval; 0 where the kernel is too old to tell."""
        found, first = 0.0, 0
        for _began_s, arrived, ended_s in self._looks:
            while arrived - self._looks[first][1] >= _STRETCH:
                began_s, before, _ = self._looks[first]
                found = max(found, (arrived - before) / max(ended_s - began_s, 1e-6))
                first += 1
        return found


def _least(echoed_s: float | None, held: socket.socket) -> float | None:
    """Return the least time there and back, None where nothing came back. The kernel's own answers, the one to a SYN among them, do not wait for a CPU that
    other processes have: a packet that is late on a busy host alone is no delay of the link."""
    kernel_s = tcp_info(held).least_rtt_us / 1e6
    return echoed_s if echoed_s is None or not kernel_s else min(echoed_s, kernel_s)
