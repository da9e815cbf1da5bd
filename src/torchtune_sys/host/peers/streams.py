"""Listen at one port of IPv4 and IPv6, and connect to a host by the family that a job takes."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from torchtune_sys.host.peers.addresses import TRIED, family_of, resolved
from torchtune_sys.host.peers.resolving import resolving

_DRAWS = 8
"""Ports that the kernel draws until one is free in both families."""
_NEXT_ADDRESS_S = 0.25
"""After which the next address of a name is tried beside one that does not answer (RFC 8305)."""
_AT_ONCE = 8
"""Connections that are taken before anybody else has a turn. asyncio takes as many as may wait: strangers who came fast enough kept all else from being done."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def bound(kind: int, port: int = 0) -> list[socket.socket]:
    """Return sockets at the same port of all IPv4 addresses and, where the kernel has IPv6, of all of those. They do not block. ``port`` 0: one that the kernel draws.
    Raises OSError, also where another program has the port of IPv6 alone: those who come by it would meet that program."""
    draws = 1 if port else _DRAWS
    while True:
        draws -= 1
        four = _bound(socket.AF_INET, kind, port)
        try:
            return [four, _bound(socket.AF_INET6, kind, four.getsockname()[1])]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return [four]
            four.close()
            if not draws:
                raise


def _bound(family: int, kind: int, port: int) -> socket.socket:
    held = socket.socket(family, kind)
    try:
        held.setblocking(False)
        if kind == socket.SOCK_STREAM:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        held.bind(("", port))
    except OSError:
        held.close()
        raise
    return held


async def listen(serve: Serve, port: int, backlog: int, **options: Any) -> tuple[list[asyncio.AbstractServer], int]:
    """Listen at one port of both families, where ``backlog`` connections may wait; return the servers, and the port. ``options`` are those of asyncio.start_server. Raises
    OSError as ``bound`` does."""
    held, servers = bound(socket.SOCK_STREAM, port), list[asyncio.AbstractServer]()
    drawn = int(held[0].getsockname()[1])
    try:
        for each in held:
            servers.append(await asyncio.start_server(serve, sock=each, backlog=_AT_ONCE, **options))
            each.listen(backlog)
    except OSError:  # another process has listened since
        for server in servers:
            server.close()
        for each in held:
            each.close()
        raise
    return servers, drawn


async def connect(name: str, port: int, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a host, by IPv4 where its name has such an address. Raises OSError."""
    with resolving(name):
        found = await resolved(name)
        four = [address for family, address in found if family == socket.AF_INET]
        tried = [*dict.fromkeys(four or [address for _family, address in found])]
        where = name if 1 < len(tried) <= TRIED else tried[0] if tried else name  # to look it up again takes as long again
        return await asyncio.open_connection(
            where, port, family=family_of(tried[0]) if tried else 0, limit=limit, happy_eyeballs_delay=_NEXT_ADDRESS_S
        )
