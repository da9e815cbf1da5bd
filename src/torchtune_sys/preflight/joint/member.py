"""One member node, as the coordinator sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from torchtune_sys.host.peers.wire import Gone, Wire
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.gathered import Node

_GRACE_S = 4.0
"""Beyond the deadline that a node keeps itself."""


class Member:
    """Raises Gone where its notes are too long."""

    def __init__(self, wire: Wire, join: messages.Join) -> None:
        self.wire, self.node = wire, join.node
        self.address, self.dialled, self.via = join.address, join.dialled, join.via
        self.control, self.link = join.control, join.link
        self.ranks: list[int] = join.ranks
        self.expected = join.expected
        self.words = join.words
        self.notes: dict[str, Any] = {}
        self.alive = True
        self.clock_offset_s: float | None = None
        self.clock_error_s = 1e9
        self.carrier_losses: Mapping[str, int] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._asked_s: dict[str, float] = {}
        """By task that was not answered: when the time for it is up (monotonic)."""
        self._asked = 0
        self._pinged: tuple[int, float, float] = (0, 0.0, 0.0)
        self._ponged = 0
        """The last ping that it answered."""
        self._answered = asyncio.Event()
        """Set by the answer to a ping that is waited for, and where none will come any more."""
        self._awaited = 0
        self._room = messages.NOTES_AT_MOST
        for key, value in join.notes.items():
            self.note(key, value)

    def note(self, key: str, value: Any) -> None:
        """Keep what the node says of itself. Raises Gone."""
        if not messages.is_note(key, self.expected):
            return
        self.counts(len(msgspec.json.encode(value)))
        self.notes[key] = value

    def counts(self, size: int) -> None:
        """Count so many bytes of what it tells unasked. Raises Gone."""
        self._room -= size
        if self._room < 0:
            raise Gone("it sent more than a node may send")

    def answered(self, said: messages.Done) -> None:
        """Take the answer to a task that was given to it. Raises Gone where none was: who answers without end leaves nobody else a turn."""
        self._asked_s.pop(said.id, None)
        waiting = self._answers.pop(said.id, None)
        if waiting is None:
            raise Gone("it answered what it was not asked")
        if not waiting.done():
            waiting.set_result(said.value)

    def ping(self) -> None:
        """Ask for its clock, and whether it is there."""
        number = self._pinged[0] + 1
        self._pinged = (number, time.monotonic(), time.time())
        self.wire.send_text(messages.encoded(messages.Ping(n=number)))

    async def answers(self) -> None:
        """Until it answers what it is asked now, or is gone."""
        if self.alive:
            self._answered.clear()
            self.ping()
            self._awaited = self._pinged[0]
            await self._answered.wait()

    def ponged(self, said: messages.Pong) -> None:
        """Take an answer to a ping: the one that took least time tells its clock best. Raises Gone where it answered that one before, or was not asked yet."""
        number, sent_s, sent_clock_s = self._pinged
        if not self._ponged < said.n <= number:
            raise Gone("it answered what it was not asked")
        self._ponged = said.n
        self.carrier_losses = said.losses
        if said.n >= self._awaited:
            self._answered.set()
        if said.n != number:
            return
        taken_s = time.monotonic() - sent_s
        if taken_s < self.clock_error_s:
            self.clock_error_s = taken_s
            self.clock_offset_s = said.clock - (sent_clock_s + taken_s / 2)

    def gone(self) -> None:
        """Note that its connection ended: nobody waits for its answers."""
        self.alive = False
        self._answered.set()
        for waiting in self._answers.values():
            waiting.cancel()

    async def ask(self, deadline_s: float, **task: Any) -> Any:
        """Return what it answers to a task; None where it does not."""
        if not self.alive:
            return None
        self._asked += 1
        name = f"{self.node}.{self._asked}"
        self._asked_s[name] = time.monotonic() + deadline_s
        waiting = self._answers[name] = asyncio.get_running_loop().create_future()
        self.wire.send_text(messages.encoded(messages.Task(id=name, deadline_s=deadline_s, **task)))
        await asyncio.wait((waiting,), timeout=deadline_s + _GRACE_S)
        return waiting.result() if waiting.done() and not waiting.cancelled() else None

    def unanswered_s(self) -> float:
        """Return by how many seconds an answer of its is overdue; 0 where none is."""
        return max(time.monotonic() - min(self._asked_s.values()), 0.0) if self._asked_s else 0.0

    def as_gathered(self) -> Node:
        """Return what is known of it, as judging wants it."""
        return Node(
            node=self.node,
            address=self.address,
            alive=self.alive,
            via=self.via,
            ranks=tuple(self.ranks),
            expected=self.expected,
            notes={**self.notes},  # more may come while they are compared in a thread
            words=self.words,
            clock_offset_s=self.clock_offset_s,
            clock_error_s=self.clock_error_s,
            carrier_losses=self.carrier_losses,
            unanswered_s=self.unanswered_s(),
        )


def how_lost(wire: Wire, words: str, silence_s: float) -> tuple[str, str]:
    """Return the cause, and what was seen, of a connection that ended as ``words`` say."""
    if "no answer" not in words:
        return "rank-killed", f"its process ended: {words}"
    if wire.unacknowledged():
        return "link-down", f"no answer for {silence_s:.0f} s, and its kernel acknowledges no data"
    return "rank-stopped", f"no answer for {silence_s:.0f} s, although its kernel acknowledges data"


Members = Mapping[int, Member]
"""By the number of the node."""


def present(members: Members) -> list[int]:
    """Return the nodes that are still there."""
    return sorted(node for node, member in members.items() if member.alive)
