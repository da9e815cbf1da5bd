"""The ranks of one node and the process that speaks for them: a socket with an abstract name, which has no place on a disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

from torchtune_sys.host.peers.wire import LINE_LIMIT, Fields, Gone
from torchtune_sys.model.codec import loads_of_python

_BACKLOG = 1024


def _address(key: str) -> str:
    return f"\0torchtune-sys-preflight-{os.geteuid()}-{key}"


def is_free(port: int) -> bool:
    """Return whether no process of this host listens at the port, on whatever address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def claim(key: str) -> socket.socket | None:
    """Return the listener of the one process of this node that gets the name; None for all others."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_address(key))
        listener.listen(_BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise


async def serve(listener: socket.socket, serve_one: Callable[[LocalWire], Awaitable[None]]) -> asyncio.AbstractServer:
    """Hand over each process of our own user that connects. The kernel says who it is."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = writer.get_extra_info("socket")
        pid, uid, _gid = struct.unpack("3i", held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            if uid == os.geteuid():
                await serve_one(LocalWire(reader, writer, pid))
        finally:
            writer.close()

    listener.setblocking(False)
    return await asyncio.start_unix_server(accept, sock=listener, limit=LINE_LIMIT)


class LocalWire:
    """A rank, as the node's process sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        self._reader, self._writer, self.pid = reader, writer, pid

    def send(self, fields: Fields) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(json.dumps(fields).encode() + b"\n")

    async def receive(self) -> Fields:
        """Return the next message. Raises Gone."""
        try:
            line = await self._reader.readline()
            fields = loads_of_python(line) if line else None
        except (OSError, ValueError) as error:
            raise Gone(str(error)) from None
        if not isinstance(fields, dict):
            raise Gone("closed")
        return fields

    def close(self) -> None:
        self._writer.close()


class RankLink:
    """The node's process, as a rank sees it."""

    def __init__(self, held: socket.socket) -> None:
        self._held = held
        self._unread = bytearray()

    @classmethod
    def connect(cls, key: str, patience_s: float) -> RankLink:
        """Connect to the other rank. Raises Gone, also where the process that answers is another user's."""
        until_s = time.monotonic() + patience_s
        while True:
            held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                held.connect(_address(key))
                pid, uid, _gid = struct.unpack("3i", held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if uid != os.geteuid():  # an abstract name is for whoever comes first
                    held.close()
                    raise Gone(f"process {pid} of user {uid} holds the name of the process that speaks for this node")
                return cls(held)
            except OSError as error:
                held.close()
                if time.monotonic() > until_s:
                    raise Gone(f"the process that speaks for this node: {error.strerror}") from None
                time.sleep(0.05)

    def fileno(self) -> int:
        return self._held.fileno()

    def send(self, fields: Fields) -> None:
        with contextlib.suppress(OSError):
            self._held.settimeout(5)
            self._held.sendall(json.dumps(fields).encode() + b"\n")

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line; None where none came in time. Raises Gone."""
        until_s = time.monotonic() + timeout_s
        while (end := self._unread.find(b"\n")) < 0:
            left = until_s - time.monotonic()
            if left <= 0:
                return None
            self._held.settimeout(left)
            try:
                part = self._held.recv(1 << 16)
            except TimeoutError:
                return None
            except OSError as error:
                raise Gone(str(error)) from None
            if not part:
                raise Gone("the process that speaks for this node ended")
            self._unread += part
        line, self._unread[: end + 1] = bytes(self._unread[:end]), b""
        try:
            fields = loads_of_python(line)
        except ValueError as error:
            raise Gone(f"the process that speaks for this node: {error}") from None
        return fields if isinstance(fields, dict) else None

    def close(self) -> None:
        self._held.close()
