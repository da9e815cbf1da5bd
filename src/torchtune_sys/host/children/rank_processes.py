"""Start the ranks of a training run, which report their progress over a socket.

The socket has an abstract name: it needs no room on a disk, and nobody but the user who trains may speak on it (SO_PEERCRED). Whoever
connects sends lines of JSON; a connection whose first line is ``{"event": "stacks"}`` carries text as it is from then on: what
faulthandler writes. Every rank has a session of its own, so a signal to the child's group does not reach them: they ask the kernel to end with their parent, and whatever is left of the child's descendants is looked for and killed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from torchtune_sys.host import processes
from torchtune_sys.host.account import Account
from torchtune_sys.host.children import process
from torchtune_sys.host.children.endings import is_ready, status_of
from torchtune_sys.model import codec
from torchtune_sys.model.values import Missing

TAIL_BYTES = 256 << 10
"""How much of what the child prints is kept: its end."""
_LINE_BYTES = 1 << 20
_MOST_BYTES = 64 << 20
"""That all ranks may say; what follows is not kept. A run of the whole test says some 100 KiB."""
_WAITING = 1024
"""Connections that may wait to be accepted; a stranger's is closed, and must keep none of ours waiting beyond its rank's end."""
_ABANDON_S = 2.0


class RankMessage(msgspec.Struct, frozen=True):
    """A line that process ``pid`` sent."""

    pid: int
    fields: dict[str, Any]


class Disconnected(msgspec.Struct, frozen=True):
    """Process ``pid`` closed its connection, most likely by ending."""

    pid: int


class Exited(msgspec.Struct, frozen=True):
    """The child itself ended."""

    rc: int


Event = RankMessage | Disconnected | Exited


class RankProcesses:
    """One child with its descendants. A context manager: nothing outlives it."""

    def __init__(
        self,
        argv: tuple[str, ...],
        env: dict[str, str],
        cwd: str,
        variable: str,
        keep: tuple[int, ...] = (),
        user: Account | None = None,
    ) -> None:
        """``variable`` is how the child learns the name of the socket; it inherits the descriptors ``keep``, and is started as ``user``."""
        self._user = user
        self._uid = os.getuid() if user is None else user.uid
        self._name = f"torchtune-sys-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._selector = selectors.PollSelector()  # which no container's profile refuses; there are few
        self._pids: dict[socket.socket, int] = {}
        self._unread: dict[socket.socket, bytearray] = {}
        self._stacks: dict[int, bytearray] = {}
        self._is_stacks: set[socket.socket] = set()
        self._output = bytearray()
        self._said = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._kept: list[Event] = []
        """What came while stacks were waited for."""
        self.failure: Missing | None = None
        """Why the child could not even be started."""
        self._start(argv, {**env, variable: self._name}, cwd, keep)

    def _start(self, argv: tuple[str, ...], env: dict[str, str], cwd: str, keep: tuple[int, ...]) -> None:
        self._listener.bind("\0" + self._name)
        self._listener.listen(_WAITING)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        found = process.start(argv, env=env, cwd=cwd, keep=keep, user=self._user, is_training=True)
        if isinstance(found, Missing):
            self.failure = found
            return
        self._child = found
        for stream in (found.stdout, found.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.end()

    @property
    def output(self) -> str:
        """Return the end of what the child and its descendants printed."""
        return self._output.decode("utf-8", "replace")

    def wait(self, timeout_s: float) -> list[Event]:
        """Return what came within ``timeout_s``; returns as soon as something did. After ``Exited`` nothing more comes."""
        kept, self._kept = self._kept, []
        return kept or self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> list[Event]:
        events: list[Event] = []
        rc = -1 if self._child is None else status_of(self._child)  # asked first, so that its last words are read
        before = len(self._pids), self._said
        for key, _mask in self._selector.select(timeout_s if rc is None else 0):
            where = key.fileobj
            if where is self._listener:
                self._accept()
            elif isinstance(where, socket.socket):
                events += self._read(where)
            elif isinstance(where, int) or not self._drain(where.fileno()):
                self._selector.unregister(where)
        more = before != (len(self._pids), self._said) and self._said <= _MOST_BYTES  # words of whoever has begun to speak
        if rc is not None and not events and not more:
            return [Exited(rc)]
        return events

    def _accept(self) -> None:
        """Accept all that wait: of a rank that has ended nobody asks again."""
        with contextlib.suppress(OSError):
            for _ in range(_WAITING + 1):
                connection, _address = self._listener.accept()
                pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if uid != self._uid or not self._ours(pid):
                    connection.close()
                    continue
                connection.setblocking(False)
                self._pids[connection] = pid
                self._unread[connection] = bytearray()
                self._selector.register(connection, selectors.EVENT_READ)

    def _ours(self, pid: int) -> bool:
        """Whether the child is among its ancestors: whoever speaks on the socket is ended with us."""
        while self._child is not None and pid > 1:
            if pid == self._child.pid:
                return True
            pid = processes.parent(pid)
        return False

    def _read(self, connection: socket.socket) -> list[Event]:
        try:
            part = connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            part = b""
        pid = self._pids[connection]
        if not part:
            self._selector.unregister(connection)
            connection.close()
            return [] if connection in self._is_stacks else [Disconnected(pid)]
        self._said += len(part)
        if self._said > _MOST_BYTES:
            return []
        if connection in self._is_stacks:
            self._stacks[pid] += part
            return []
        return self._lines(connection, pid, part)

    def _lines(self, connection: socket.socket, pid: int, part: bytes) -> list[Event]:
        unread = self._unread[connection]
        unread += part
        events: list[Event] = []
        while (end := unread.find(b"\n")) >= 0:
            line, unread[: end + 1] = bytes(unread[:end]), b""
            with contextlib.suppress(ValueError):
                fields = codec.loads(line)
                if isinstance(fields, dict) and fields.get("event") == "stacks":
                    self._is_stacks.add(connection)
                    self._stacks.setdefault(pid, bytearray()).extend(unread)
                    unread.clear()
                elif isinstance(fields, dict):
                    events.append(RankMessage(pid, fields))
        if len(unread) > _LINE_BYTES:
            unread.clear()
        return events

    def _drain(self, handle: int) -> bool:
        try:
            part = os.read(handle, 1 << 16)
        except BlockingIOError:
            return True
        self._output += part
        del self._output[:-TAIL_BYTES]
        return bool(part)

    def stacks(self, pids: Iterable[int], patience_s: float = 2.0) -> dict[int, str]:
        """Ask processes where they are; a stopped one, or one that left its handler aside, does not answer."""
        asked = [pid for pid in pids if pid in self._stacks]
        for pid in asked:
            self._stacks[pid].clear()
            self._signal(pid, signal.SIGUSR1)
        limit = time.monotonic() + patience_s
        while time.monotonic() < limit and not all(_is_whole(self._stacks[pid]) for pid in asked):
            events = self._collect(0.05)
            self._kept += events
            if any(isinstance(event, Exited) for event in events):
                break
        self._kept += self._collect(0.1)
        return self.crash_reports(asked)

    @property
    def pids(self) -> set[int]:
        """Return who spoke so far: the child, and those of its descendants that do."""
        return {*self._pids.values()}

    @property
    def launcher(self) -> int:
        """Return the process that starts the ranks; 0 where it was not started."""
        return self._child.pid if self._child is not None else 0

    def crash_reports(self, pids: Iterable[int]) -> dict[int, str]:
        """Return what faulthandler wrote so far, by process; those for which it wrote nothing are left out."""
        return {pid: text.decode("utf-8", "replace") for pid in pids if (text := self._stacks.get(pid))}

    def state(self, pid: int) -> str:
        """Return the letter of proc(5): R, S, D, T (stopped), t, Z; "" for a process that is gone."""
        return processes.state(pid)

    def wait_for_cpus(self, pid: int) -> tuple[float, str]:
        """Return the seconds that a process's first thread could have run while others did, and how it is scheduled (sched(7)); 0 and "" where nobody tells."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            policy, niceness = os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)
            named = {os.SCHED_IDLE: "SCHED_IDLE, ", os.SCHED_BATCH: "SCHED_BATCH, "}.get(policy, "")
            return int(processes.read(pid, "schedstat").split()[1]) / 1e9, f"{named}niceness {niceness}"
        return 0.0, ""

    def end(self) -> None:
        """End the child and all its descendants."""
        if self._child is not None:
            family = {*processes.descendants(self._child.pid), *(pid for where, pid in self._pids.items() if where.fileno() >= 0)}
            held = [one for pid in family if (one := self._held(pid)) is not None]
            process.end(self._child)
            process.forget(self._child)
            for one in held:
                one.signal(signal.SIGKILL)
            limit = time.monotonic() + _ABANDON_S
            while time.monotonic() < limit and self._kill_heirs() + sum(not one.is_over() for one in held):
                time.sleep(0.01)
            for one in held:
                one.close()
        self._selector.close()
        self._listener.close()
        for connection in self._pids:
            connection.close()

    def _kill_heirs(self) -> int:
        """How many were left of those whose parent has ended (what a compiler of a compiler started): they carry the socket's name."""
        own = (pid for pid in processes.pids() if processes.owner(pid) in (self._uid, 0))
        return sum(self._signal(pid, signal.SIGKILL) for pid in own if self._carries_name(pid))

    def _carries_name(self, pid: int) -> bool:
        return self._name.encode() in processes.read(pid, "environ")

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        """Return whether it is one of the ranks' processes."""
        held = self._held(pid)
        if held is None:
            return False
        held.signal(number)
        held.close()
        return True

    def _held(self, pid: int) -> _Held | None:
        """Return a process of the ranks' and their user's; None for any other: who spoke on the socket may have ended, and its number be another process's by now; the socket's
        name stands in /proc/net/unix, and anybody may write it into an environment."""
        held = _Held(pid, _handle(pid))
        if processes.real_user(pid) == self._uid and (self._ours(pid) or self._carries_name(pid)):
            return held
        held.close()
        return None


class _Held(NamedTuple):
    """A process, by a handle that stays with it; -1 on a kernel without (before 5.3) and beyond the most handles, where its number has to do."""

    pid: int
    handle: int

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            if self.handle < 0:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self.handle, number)

    def is_over(self) -> bool:
        """Return whether it has ended: its handle is readable then (pidfd_open(2))."""
        if self.handle < 0:
            return processes.state(self.pid) in ("", "Z")
        return is_ready(self.handle)

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)


def _handle(pid: int) -> int:
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1
    if (
        handle < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    ):  # to look for the rest of a thousand processes takes some, too
        return handle
    os.close(handle)
    return -1


def _is_whole(dump: bytes | bytearray) -> bool:
    """faulthandler writes thread by thread in small pieces, the main thread last; its outermost frame is the script, unless there are
    more than 100 (Python/traceback.c).

    >>> _is_whole(b'Thread 0x7f (most recent call first):\\n  File "a.py", line 1 in run\\n')
    False
    >>> _is_whole(b'Current thread 0x7f (most recent call first):\\n  File "smoke.py", line 9 in <module>\\n')
    True
    """
    return dump.endswith((b" in <module>\n", b"  ...\n"))
