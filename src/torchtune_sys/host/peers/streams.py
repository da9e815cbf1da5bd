"""Listen at one port of IPv4 and IPv6, and connect to a host by the family that a job takes."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from torchtune_sys.host.peers.addresses import addresses_of, family_of
from torchtune_sys.host.peers.resolving import resolving

_DRAWS = 8
"""Ports that the kernel draws until one is free in both families."""
_NEXT_ADDRESS_S = 0.25
"""After which the next address of a name is tried beside one that does not answer (RFC 8305)."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def listen(serve: Serve, port: int, **options: Any) -> tuple[list[asyncio.AbstractServer], int]:
    """Listen at the same port of all IPv4 addresses and, where the kernel has IPv6, of all of those; return the servers, and the port. ``port`` 0: one that the kernel draws.
    ``options`` are those of asyncio.start_server. Raises OSError."""
    for draw in range(1, _DRAWS + 1):
        four = await asyncio.start_server(serve, None, port, family=socket.AF_INET, **options)
        drawn = int(four.sockets[0].getsockname()[1])
        try:
            return [four, await asyncio.start_server(serve, None, drawn, family=socket.AF_INET6, **options)], drawn
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return [four], drawn
            four.close()
            if port or draw == _DRAWS:  # those who come by IPv6 would meet another program
                raise
    raise AssertionError("the last draw returns or raises")


def datagram_sockets() -> list[socket.socket]:
    """Return sockets for datagrams at one port that the kernel draws, of IPv4 and, where the kernel has it, of IPv6. They do not block. Raises OSError."""
    for draw in range(1, _DRAWS + 1):
        four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        four.setblocking(False)
        four.bind(("", 0))
        try:
            six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        except OSError:
            return [four]
        six.setblocking(False)
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            six.bind(("", four.getsockname()[1]))
            return [four, six]
        except OSError as error:
            six.close()
            if error.errno != errno.EADDRINUSE or draw == _DRAWS:
                return [four]
            four.close()
    raise AssertionError("the last draw returns")


async def connect(name: str, port: int, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a host, by IPv4 where its name has such an address. Raises OSError."""
    found = await addresses_of(name)
    where = found[0] if len(found) == 1 else name  # to look it up again takes as long again
    with resolving(name):
        return await asyncio.open_connection(
            where, port, family=family_of(found[0]) if found else 0, limit=limit, happy_eyeballs_delay=_NEXT_ADDRESS_S
        )
