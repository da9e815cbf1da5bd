"""What somebody on the network, or another user of the first node, does while launchers meet: ``attackers.py WHAT ADDRESS PORT [KEY]``, until it is killed.

PORT is the endpoint's; launchers meet at the next ones. Runs by itself, in a host of a cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

MAGIC = (0x3C85F7CE).to_bytes(4, "little")
GREETING = b"torchtune-sys/peers/2 "
ROUND_S = 0.05


def connections(address: str, port: int, count: int) -> Iterator[socket.socket]:
    """``count`` that could be made, each with little patience."""
    for _ in range(count):
        with contextlib.suppress(OSError):
            held = socket.create_connection((address, port), 0.5)
            held.settimeout(0.5)
            yield held


def squat(address: str, port: int, _key: bytes) -> None:
    """Another user of the first node listens where launchers would meet, and says nothing."""
    held = []
    for number in range(port + 1, port + 5):
        each = socket.socket()
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("", number))
        each.listen()
        held.append(each)
    print("ready", flush=True)
    time.sleep(600)


def older(address: str, port: int, _key: bytes) -> None:
    """The same as ``squat``, but greets everybody as another release of the tool does."""
    held = [socket.create_server(("", number), backlog=100) for number in range(port + 1, port + 5)]
    print("ready", flush=True)
    while True:
        for each in select.select(held, [], [])[0]:
            with contextlib.suppress(OSError):
                near, _ = each.accept()
                near.sendall(b"torchtune-sys/peers/1 " + b"0" * 32 + b"\n")
                near.close()


def endpoint(address: str, port: int, _key: bytes) -> None:
    """Another user of the first node listens where the launchers' own rendezvous will be, and says nothing."""
    held = socket.create_server(("", port))
    print("ready", flush=True)
    time.sleep(600)
    held.close()


def passing(address: str, port: int, _key: bytes) -> None:
    """Ever more connections that say what a client of torch's store says first."""
    held: list[socket.socket] = []
    print("ready", flush=True)
    while True:
        for each in connections(address, port, 5 if len(held) < 1000 else 0):
            with contextlib.suppress(OSError):
                each.sendall(MAGIC)
            held.append(each)
        time.sleep(ROUND_S)


RESET = b"\1\0\0\0\0\0\0\0"
"""Lingering, for no time: what is not sent is thrown away (socket(7))."""


def noise(address: str, port: int, _key: bytes) -> None:
    """Garbage, a greeting and brackets 100,000 deep, lines without an end, half a greeting that never ends, bytes of an earlier conversation, TLS;
    of three connections one stays, one is half closed, and one is reset."""
    words = (os.urandom(4096), GREETING + b"0" * 32 + b"\n" + b"[" * 100_000, b"x" * (1 << 20), GREETING[:9], b"GET / HTTP/1.1\r\n\r\n",
             GREETING + b"0" * 32 + b"\n" + b"0" * 32 + b' {"is": "seat", "key": "", "token": "x"}\n', MAGIC * 1000, b"torchtune-sys/peers/1 " + b"0" * 32 + b"\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"\7" * 500)  # fmt: skip
    loris: list[socket.socket] = []
    print("ready", flush=True)
    while True:
        for number in range(port, port + 5):
            for word in words:
                for place, each in enumerate(connections(address, number, 3)):
                    with contextlib.suppress(OSError):
                        each.sendall(word)
                        if place:
                            each.shutdown(socket.SHUT_WR)
                    if place > 1:
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        each.close()
                    else:
                        loris.append(each)
        for each in loris[-600:]:
            with contextlib.suppress(OSError):
                each.send(b"x")
        for each in loris[:-600]:
            each.close()
        del loris[:-600]
        time.sleep(ROUND_S)


def speak(address: str, port: int, secret: bytes, *said: dict[str, object]) -> tuple[socket.socket, list[dict[str, object]]]:
    """Say lines as a node that knows ``secret``; the connection, and what was answered to each."""
    held = socket.create_connection((address, port), 2)
    held.settimeout(2)
    file = held.makefile("rb")
    ours = os.urandom(16).hex().encode()
    held.sendall(GREETING + ours + b"\n")
    theirs = file.readline().strip().partition(b" ")[2]
    out = hmac.new(secret, b"first" + ours + theirs, hashlib.sha256).digest()
    answers = []
    for number, fields in enumerate(said):
        text = json.dumps(fields).encode()
        held.sendall(hmac.digest(out, struct.pack(">Q", number) + text, "sha256").hex()[:32].encode() + b" " + text + b"\n")
        with contextlib.suppress(OSError, ValueError):
            answers.append(json.loads(file.readline().partition(b" ")[2]))
    return held, answers


def seats(address: str, port: int, key: bytes) -> None:
    """Whoever knows the job, which without a secret are address, port, size and run id, takes every place."""
    print("ready", flush=True)
    while True:
        for number in range(port + 1, port + 5):
            with contextlib.suppress(OSError):
                for step in range(8):
                    speak(address, number, key, {"is": "seat", "key": key.decode(), "token": f"{step}"})[0].close()
        time.sleep(ROUND_S)


ATTACKS: dict[str, Callable[[str, int, bytes], None]] = {
    "squat": squat,
    "older": older,
    "endpoint": endpoint,
    "passing": passing,
    "noise": noise,
    "seats": seats,
}

if __name__ == "__main__":
    what, where, port, *more = sys.argv[1:]
    ATTACKS[what](where, int(port), (more[0] if more else "").encode())
