"""Exchange signed lines of JSON between two processes of a job. Nothing else is ever decoded.

Both sides first send a random number. From these numbers and the job's secret each direction derives its own key. Every line carries a MAC over its
sequence number and its text, so nobody without the secret can send, repeat or drop a line. Without a job secret the key is not secret:
then the MAC only keeps other programs and other jobs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import hmac
import ipaddress
import os
import socket
import struct
import termios
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from torchtune_sys.host.peers.streams import connect
from torchtune_sys.host.peers.tcp_info import tcp_info
from torchtune_sys.model import codec

LINE_LIMIT = 4 << 20
"""Bytes; the verdict over 10,000 nodes with all their causes is smaller."""
BUFFER = 1 << 14
"""Bytes that are taken from the kernel before somebody asks for them, of a peer that may be anybody."""
HELLO_LIMIT = 512
"""Bytes of a line of somebody who did not show yet that they know the job's secret."""
HANDSHAKE_S = 2.0
_SEGMENT = 1200
"""Bytes; IPv6, and so each tunnel that carries it, has 1,280 at least (RFC 8200)."""
_LOSSY_AT_LEAST, _LOSSY_SHARE = 3, 0.02
"""Packets, and their share, that were sent again or came out of order: above both, the way loses packets."""
_LOSSY_PATIENCE = 3
"""TCP waits twice as long after each packet that is lost once more: on such a way silence lasts so many times longer before it counts."""
_PROGRAM = "torchtune-sys/peers/"
_GREETING = f"{_PROGRAM}2"

_FREE = 64 << 10
"""Bytes of a line that count against no ``LineMemory``: what a node says when it joins is shorter."""

Fields = dict[str, Any]
_encode = msgspec.json.Encoder().encode


class Gone(Exception):
    """The other side closed, broke the rules, or did not answer in time."""


class OtherRelease(Gone):
    """A torchtune-sys that greets otherwise."""


class LineMemory:
    """Memory for the longer lines of all who did not join yet: one that opens many connections fills no more than this."""

    def __init__(self, limit: int) -> None:
        self.limit, self.taken = limit, 0

    def take(self, size: int) -> None:
        """Count so many bytes. Raises Gone where there is not so much left."""
        if self.taken + size > self.limit:
            raise Gone("no memory is left for what is said before joining")
        self.taken += size

    def give(self, size: int) -> None:
        self.taken -= size


class Wire:
    """One connection after its handshake."""

    room: LineMemory | None = None
    """What its lines are counted against."""
    line_limit = LINE_LIMIT
    """Bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keys: tuple[bytes, bytes]) -> None:
        self._reader, self._writer = reader, writer
        self._out_key, self._in_key = keys
        self._sent = self._received = 0
        self.heard_s = time.monotonic()
        """When the last line came."""
        self.loses = False
        """Whether packets got lost on this connection, in either direction, before it was last heard."""
        self._looked_s = self.heard_s
        self.bytes_sent = self.bytes_received = 0

    def send(self, fields: Fields) -> None:
        """Queue a line. A connection that is gone says so when it is read."""
        self.send_text(_encode(fields))

    def send_text(self, text: bytes) -> None:
        """Send the same with JSON that is written already, in one line."""
        line = _mac(self._out_key, self._sent, text) + b" " + text + b"\n"
        self._sent += 1
        self.bytes_sent += len(line)
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(line)

    async def receive(self, timeout_s: float | None = None) -> Fields:
        """Return the next line, after others had a turn. Raises Gone. The first line of a stranger must be short. Where packets get lost it may take longer."""
        await asyncio.sleep(0)  # who sends faster than is read would be heard alone
        expiry = None
        if timeout_s is not None:
            # Nobody reads on after it. asyncio.wait_for makes a task for each line, which takes longer than the line
            waits_s = timeout_s * _LOSSY_PATIENCE if self.loses else timeout_s
            expiry = asyncio.get_running_loop().call_later(waits_s, self._reader.set_exception, asyncio.TimeoutError())
        try:
            line = await _line(self._reader, self.line_limit if self._received else HELLO_LIMIT, self.room)
        except asyncio.TimeoutError:
            raise Gone("no answer") from None
        except OSError as error:
            raise Gone(f"{error}") from None
        finally:
            if expiry is not None:
                expiry.cancel()
        mac, _, text = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(mac, _mac(self._in_key, self._received, text)):
            raise Gone("a line that was not signed with the job's secret")
        self._received += 1
        self.bytes_received += len(line)
        self.heard_s = time.monotonic()
        if self.heard_s > self._looked_s + 1:
            self._looked_s, self.loses = self.heard_s, self._has_lost()
        try:
            fields = codec.loads(text)
        except ValueError:
            raise Gone("no JSON") from None
        if not isinstance(fields, dict):
            raise Gone("no JSON object")
        return fields

    def _has_lost(self) -> bool:
        seen = tcp_info(self._writer.transport.get_extra_info("socket"))
        shares = ((seen.retransmits, seen.sent), (seen.disordered, seen.received))
        return any(part >= max(_LOSSY_AT_LEAST, _LOSSY_SHARE * of) for part, of in shares)

    def unacknowledged(self) -> int:
        """Return the bytes that the other side's *kernel* has not acknowledged: above 0 for long, the host or the way to it is gone; 0 with no answer,
        its process is stopped or hangs (SIOCOUTQ, tcp(7))."""
        held = self._writer.transport.get_extra_info("socket")
        try:
            return int(struct.unpack("i", fcntl.ioctl(held.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
        except (OSError, AttributeError, ValueError):  # closed
            return 0

    def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return what is below: whoever takes it speaks without this wire's keys from then on."""
        return self._reader, self._writer

    def addresses(self) -> tuple[str, str]:
        """Return our own address on this connection, and the other's."""
        own, other = (self._writer.get_extra_info(name) or ("",) for name in ("sockname", "peername"))
        if not isinstance(own, tuple) or not isinstance(other, tuple):
            return "", ""
        return str(own[0]).removeprefix("::ffff:"), str(other[0]).removeprefix("::ffff:")  # an IPv4 address in another form

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.close()

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.transport.abort()


async def _line(reader: asyncio.StreamReader, limit: int, room: LineMemory | None = None) -> bytes:
    """Return the next line, whole. Raises Gone where the connection ends before it does, where it is longer than ``limit``, and where ``room`` is full."""
    parts: list[bytes] = []
    size = counted = 0
    try:
        while not parts or not parts[-1].endswith(b"\n"):
            try:
                parts.append(await reader.readuntil(b"\n"))
            except asyncio.LimitOverrunError as over:  # no end of the line in the buffer yet
                parts.append(await reader.readexactly(over.consumed))
            except asyncio.IncompleteReadError:
                raise Gone("closed") from None
            size += len(parts[-1])
            if size > limit:
                raise Gone(f"a line of more than {limit} bytes")
            if room is not None and size > _FREE:
                room.take(len(parts[-1]))
                counted += len(parts[-1])
        return b"".join(parts)
    finally:
        if room is not None:
            room.give(counted)


def _mac(key: bytes, number: int, text: bytes) -> bytes:
    return hmac.digest(key, struct.pack(">Q", number) + text, "sha256").hex()[:32].encode()


def _keys(secret: bytes, ours: bytes, theirs: bytes, first: bool) -> tuple[bytes, bytes]:
    """Return what we sign with, and what the other side does."""
    numbers = ours + theirs if first else theirs + ours
    out, into = (b"first", b"second") if first else (b"second", b"first")
    return tuple(hmac.new(secret, side + numbers, hashlib.sha256).digest() for side in (out, into))  # type: ignore[return-value]


async def handshake(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, *, first: bool, timeout_s: float = HANDSHAKE_S
) -> Wire:
    """``first`` is the side that connected. Raises Gone where the other side is not torchtune-sys."""
    ours = os.urandom(16).hex().encode()
    try:
        if first:
            writer.write(_GREETING.encode() + b" " + ours + b"\n")
        line = await asyncio.wait_for(_line(reader, HELLO_LIMIT), timeout_s)
        if not first:  # also to one that greets otherwise: so it learns of the other release
            writer.write(_GREETING.encode() + b" " + ours + b"\n")
        greeting, _, theirs = line.strip().partition(b" ")
        said = greeting.decode("ascii", "replace")
        if said != _GREETING and said.startswith(_PROGRAM):
            raise OtherRelease("another release of torchtune-sys answers there")
        if said != _GREETING or len(theirs) != 32:
            raise Gone("another program answers there")
    except (asyncio.TimeoutError, OSError) as error:
        writer.transport.abort()
        raise Gone(f"no greeting: {type(error).__name__}") from None
    except OtherRelease:
        writer.close()
        raise
    except Gone:
        writer.transport.abort()
        raise
    return Wire(reader, writer, _keys(secret, ours, theirs, first))


class Door:
    """Connections of one kind that are open at once. Where there are too many, the one that has been open longest is broken off, of those who have most of them: who opens
    thousands keeps nobody out who says at once what he wants, neither another node nor, as a user of a node, that one."""

    def __init__(self, limit: int) -> None:
        """``limit``: of all together. There is none of one host: a thousand nodes behind one gateway, or in one network of IPv6, come as one."""
        self._limit = limit
        self._open: dict[str, dict[asyncio.StreamWriter, None]] = {}
        self._count = 0

    @contextlib.contextmanager
    def held(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Count a connection until the end of the block."""
        whose = _whose(str((writer.get_extra_info("peername") or ("",))[0]))
        self._open.setdefault(whose, {})[writer] = None
        self._count += 1
        if self._count > self._limit:
            self._break_off(max(self._open, key=lambda each: len(self._open[each])))
        try:
            yield
        finally:
            self._forget(whose, writer)

    def _break_off(self, whose: str) -> None:
        oldest = next(iter(self._open[whose]))
        self._forget(whose, oldest)
        oldest.transport.abort()

    def _forget(self, whose: str, writer: asyncio.StreamWriter) -> None:
        theirs = self._open.get(whose, {})
        if writer in theirs:
            del theirs[writer]
            self._count -= 1
            if not theirs:
                del self._open[whose]


def _whose(address: str) -> str:
    """Return by what the connections of one host are counted: of IPv6 it has a whole network (RFC 7421), of the loopback any user of this host has 127.0.0.0/8.

    >>> _whose("127.0.0.9"), _whose("::ffff:10.0.0.1"), _whose("2001:db8::5"), _whose("fe80::1%eth0")
    ('127.0.0.0/8', '10.0.0.1', '2001:db8::/64', 'fe80::/64')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return "127.0.0.0/8" if found.is_loopback else str(found)


async def call(address: str, port: int, secret: bytes, timeout_s: float) -> Wire:
    """Connect and greet. Raises OSError (refused, unreachable), TimeoutError, Gone."""
    try:
        reader, writer = await asyncio.wait_for(connect(address, port, BUFFER), timeout_s)
    except asyncio.TimeoutError:
        raise TimeoutError from None
    _prompt(writer)
    return await handshake(reader, writer, secret, first=True)


def in_small_packets(server: asyncio.AbstractServer) -> None:
    """Send and receive no packet, on the connections of a server, that is larger than any way carries (TCP_MAXSEG on the listener, tcp(7)): where large ones vanish, what
    nodes say to each other still arrives."""
    for listening in getattr(server, "sockets", ()):
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)


def _prompt(writer: asyncio.StreamWriter) -> None:
    held = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
