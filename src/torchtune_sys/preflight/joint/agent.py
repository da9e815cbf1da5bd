"""The process that speaks for a node: it knows its ranks, follows the coordinator, tests connections, and is the coordinator where it has to be.

It is forked by the first rank that comes and outlives all of them, so that a rank that dies is named by its own node.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket  # noqa: TID251 -- the type of the listener that the first rank hands on
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from torchtune_sys.host.peers import links, local, spare
from torchtune_sys.host.peers.wire import BUFFER, HANDSHAKE_S, Door, Gone, Wire, handshake
from torchtune_sys.preflight.joint import meeting, messages
from torchtune_sys.preflight.joint.coordinator import Coordinator
from torchtune_sys.preflight.joint.gathered import HOST_SAYS
from torchtune_sys.preflight.joint.job import Job, Times

_BACKLOG = 4096
"""Nodes that may call in the same moment (the kernel's own limit is net.core.somaxconn)."""
_FROM_ONE, _IN_ALL = 256, 8192
"""Connections of those who did not join yet: from one address, and from all."""
_CHOOSING_S = 30.0
"""Time for a node that called to say what it wants."""
_TASKS_AT_MOST = 16
_LOOK_S, _CLIMB_S = 0.5, 1.0
_ALONE_S = 10.0
_SEAT_S = 0.5
_AGREED_LOOKS = 3
"""A rank that was seen stopped so often in a row is called stopped: a debugger or a scheduler may stop one for a moment."""


class _Rank:
    def __init__(self, wire: local.LocalWire, number: int, rank: int) -> None:
        self.wire, self.local, self.rank = wire, number, rank
        self.stopped = 0
        self.told_stopped = False
        self.answers: dict[str, asyncio.Future[Any]] = {}


class Agent:
    """One node's."""

    def __init__(self, job: Job, times: Times) -> None:
        self.job, self.times = job, times
        self.ranks: dict[int, _Rank] = {}
        self.ended: dict[int, tuple[str, str]] = {}
        """Local ranks that ended without a good-bye, and how."""
        self.notes: dict[str, Any] = {}
        self.verdict: dict[str, Any] | None = None
        self.lost: dict[int, tuple[str, str]] = {}
        """Coordinators that we lost, with the cause."""
        self.server = links.LinkServer()
        self.control_port = 0
        self.map = meeting.Map(job, lambda: self.control_port)
        self.coordinator: Coordinator | None = None
        self.uplink: Wire | None = None
        self._better: meeting.Reached | None = None
        self.following = -1
        self.finished = asyncio.Event()
        self._token = secrets.token_hex(8)
        self._seats: dict[str, int] = {}
        """Places given to launchers on other hosts, by who asked."""
        self._agents = 0
        self._door = Door(_FROM_ONE, _IN_ALL)
        self._listeners: list[asyncio.AbstractServer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Until the verdict is given to every rank, or nobody is left to give it to."""
        self._door = Door(_FROM_ONE, min(_IN_ALL, spare.allow_connections() // 2))
        await self.server.start()
        await self._open_control_port()
        self._listeners.append(await local.serve(listener, self._serve_rank))
        beside = [asyncio.ensure_future(work) for work in (self._watch(), self._seek())]
        try:
            await asyncio.wait_for(self.finished.wait(), self.times.until_s - time.monotonic())
            await self._part()
        except asyncio.TimeoutError:
            self._tell_ranks({"is": "cut-off", "seen": "no verdict came in time"})
        finally:
            for work in beside:
                work.cancel()
            self.server.stop()
            for listening in self._listeners:
                listening.close()

    async def _part(self) -> None:
        """Let ranks, and the nodes that follow us, take the verdict before the sockets close."""
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s and (self.ranks or (self.coordinator is not None and self.coordinator.has_followers())):
            await asyncio.sleep(0.05)

    async def _open_control_port(self) -> None:
        is_candidate = self.job.node in self.job.candidates
        for port in (*(self.job.ports if is_candidate else ()), 0):
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(
                    self._serve_node, None, port, family=socket.AF_INET, limit=BUFFER, backlog=_BACKLOG
                )
                self._listeners.append(server)
                self.control_port = server.sockets[0].getsockname()[1]
                return

    # -- other nodes that call ---------------------------------------------------------------------------------------------------------

    async def _serve_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with self._door.held(writer) as is_let_in:
                joins = await self._asked(reader, writer) if is_let_in else None
            if joins is not None:
                coordinator, wire, join = joins
                await coordinator.join(wire, join)
        except Gone:
            pass
        finally:
            writer.close()

    async def _asked(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Coordinator, Wire, messages.Join] | None:
        """Hear a node until it joins. Raises Gone."""
        wire = await handshake(reader, writer, self.job.secret, first=False)
        patience_s = HANDSHAKE_S  # who does not know the secret has no more
        while True:
            asked = messages.asked(await wire.receive(patience_s))
            patience_s = _CHOOSING_S
            if isinstance(asked, messages.Who):
                members = len(self.coordinator.members) if self.coordinator is not None else 0
                wire.send(messages.plain(messages.Me(node=self.job.node, key=self.job.key, members=members)))
            elif isinstance(asked, messages.Seat):
                wire.send(messages.plain(messages.Seated(node=self._seat(asked))))
            elif isinstance(asked, messages.Relay):
                await meeting.splice(wire, self.map.places(asked.to), lambda: wire.send({"is": "through"}))
                return None
            elif self.coordinator is None:
                wire.send(messages.plain(messages.Redirect(to=self.following, via=self.job.node)))
            else:
                return self.coordinator, wire, asked

    def _seat(self, asked: messages.Seat) -> int:
        """The same for whoever asks again; places are those after the first, which is ours."""
        if self.job.agents is None or asked.key != self.job.key or self.job.node != 0:
            return -1
        if asked.token not in self._seats and len(self._seats) + 1 >= self.job.nodes:
            return -1
        return self._seats.setdefault(asked.token, len(self._seats) + 1)

    # -- where to ----------------------------------------------------------------------------------------------------------------------

    async def _seek(self) -> None:
        """Follow the lowest candidate that is reached, and be the coordinator where none is."""
        if self.job.node < 0 and not await self._take_seat():
            return
        if self.job.agents is not None and self.job.node == 0 and not local.is_free(self.job.agents.endpoint_port):
            self._end({"is": "alone", "seen": "a process listens there already"})
            return
        order = self.job.candidates
        own = self.job.node if self.job.node in order else self.job.nodes
        target: meeting.Reached | None = None
        while not self.finished.is_set():
            is_candidate = own in order  # then help is asked for while we wait as the coordinator
            target = target or await meeting.lower(self.map, order, own, self.lost, through=not is_candidate)
            if target is None and is_candidate:
                # A firewall may refuse us on our own loopback: then we follow another.
                target = await self._become_coordinator() or await self._larger(order)
            if target is None:
                is_lost = self.job.agents is not None and bool(self.lost)  # there is no other place
                if is_lost or time.monotonic() > self.times.meet_until_s:
                    self._tell_ranks({"is": "cut-off", "seen": self._unreached()})
                    self.finished.set()
                await asyncio.sleep(0.3)
                continue
            target = await self._follow(target)

    async def _take_seat(self) -> bool:
        """A launcher's place in the job. False where it gets none: the reason is told, and whether the launchers' rendezvous has begun without us."""
        agents = self.job.agents
        assert agents is not None
        word, was_open = "", False
        while True:
            node, word = await meeting.seat(self.job, self._token)
            if node >= 0:
                self.job = msgspec.structs.replace(self.job, node=node)
                self.map = meeting.Map(self.job, lambda: self.control_port)
                return True
            is_open = word != "full" and await links.listens(self.job.master, agents.endpoint_port)
            if word == "full" or (is_open and was_open):
                self._end({"is": "alone", "seen": "all places are taken" if word == "full" else "the rendezvous has begun"})
                return False
            was_open = is_open
            if time.monotonic() > self.times.meet_until_s:
                self._end({"is": "never", "seen": HOST_SAYS.get(word, word)})
                return False
            await asyncio.sleep(_SEAT_S)

    def _unreached(self) -> str:
        words = ", ".join(f"{self.job.name(node)}: {word}" for node, word in sorted(self.map.words.items()))
        return f"no node to meet at was reached at {self.job.master} port {self.job.ports[0]} ({words})"

    async def _become_coordinator(self) -> meeting.Reached | None:
        if self.coordinator is None:
            self.coordinator = Coordinator(self.job, self.times, dict(self.lost), self.map)
        return await self.map.dial(self.job.node)

    async def _follow(self, target: meeting.Reached) -> meeting.Reached | None:
        """Take part under a coordinator; where to go next where it sends us on."""
        wire, self.following, self.uplink = target.wire, target.node, target.wire
        if target.node != self.job.node:
            self._resign(target.node)
        wire.send(messages.plain(self._introduction(target)))
        climbing = asyncio.ensure_future(self._climb(wire)) if target.node == self.job.node else None
        try:
            while True:
                said = messages.from_coordinator(await wire.receive(self.job.silence_s))
                if isinstance(said, messages.Redirect):
                    return self._taken_better() or await self._redirected(said, target.node)
                self._hear(wire, said)
                if self.finished.is_set():
                    await asyncio.sleep(0.05)
                    return None
        except Gone as error:
            if not self.finished.is_set() and target.node != self.job.node:
                self.lost[target.node] = _how_lost(wire, str(error), self.job.silence_s)
            return self._taken_better()
        finally:
            self.uplink = None
            if climbing is not None:
                climbing.cancel()
            wire.close()

    def _taken_better(self) -> meeting.Reached | None:
        """The coordinator that was found while we were one ourselves, with the way to it: there may be no other."""
        better, self._better = self._better, None
        return better

    def _introduction(self, target: meeting.Reached) -> messages.Join:
        own, other = target.wire.addresses() if target.node != self.job.node else ("", "")
        return messages.Join(
            node=self.job.node,
            address=own,
            dialled=other if target.via is None else "",
            via=target.via,
            control=self.control_port,
            link=(self.server.port, self.server.udp_port, self.server.mark),
            ranks=sorted(self.ranks),
            expected=self.job.locals_,
            notes=self.notes,
            words={node: word[: messages.TEXT_AT_MOST] for node, word in self.map.words.items()},
            lost=self.lost,
            ended=self.ended,
        )

    async def _climb(self, own: Wire) -> None:
        """While we are the coordinator and wait: is a better one reached by now?"""
        order = self.job.candidates
        while self.coordinator is not None and not self.coordinator.started:
            await asyncio.sleep(_CLIMB_S)
            better = await meeting.lower(self.map, order, self.job.node, self.lost) or await self._larger(order)
            if better is None or self.coordinator.started:
                if better is not None:
                    better.wire.close()
                continue
            self._better = better
            self.coordinator.redirect(better.node, self.job.node)
            own.abort()
            return

    async def _larger(self, order: tuple[int, ...]) -> meeting.Reached | None:
        """A later candidate that more nodes follow than us: nobody reaches us, but we reach it."""
        assert self.coordinator is not None
        if len(self.coordinator.members) * 2 > self.job.nodes or time.monotonic() < self.times.larger_from_s:
            return None
        for node in order:
            if node <= self.job.node or node in self.lost:
                continue
            reached = await self.map.dial(node)
            if reached is None:
                continue
            reached.wire.send(messages.plain(messages.Who()))
            with contextlib.suppress(Gone):
                if messages.me(await reached.wire.receive(meeting.DIAL_S)).members > len(self.coordinator.members):
                    return reached
            reached.wire.close()
        return None

    def _resign(self, to: int) -> None:
        if self.coordinator is not None:
            self.coordinator.redirect(to, self.job.node)
            self.coordinator = None

    async def _redirected(self, said: messages.Redirect, by: int) -> meeting.Reached | None:
        await asyncio.sleep(0.2)
        if said.to in (self.job.node, by) or not 0 <= said.to < self.job.nodes:
            return None
        return await self.map.dial(said.to) or await self.map.dial_through(said.via, said.to)

    # -- what the coordinator says -----------------------------------------------------------------------------------------------------

    def _hear(self, wire: Wire, said: messages.FromCoordinator) -> None:
        if isinstance(said, messages.Ping):
            wire.send(messages.plain(messages.Pong(n=said.n, clock=time.time())))
        elif isinstance(said, messages.Table):
            self.map.table.update({node: place for node, place in said.nodes.items() if node < self.job.nodes})
        elif isinstance(said, messages.Status):
            self._tell_ranks({"is": "status", "text": said.text})
        elif isinstance(said, messages.Verdict):
            self._end({"is": "verdict", "value": said.value, "node": self.job.node})
        elif isinstance(said, messages.CutOff):
            self._end({"is": "cut-off", "seen": said.seen})
        elif isinstance(said, messages.Refused):
            self._end({"is": "cut-off", "seen": f"another process takes part as node {self.job.node} already"})
        elif isinstance(said, messages.Task) and len(self._tasks) < _TASKS_AT_MOST:
            task = asyncio.ensure_future(self._do(wire, said))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _end(self, verdict: dict[str, Any]) -> None:
        self.verdict = verdict
        self._tell_ranks(verdict)
        self.finished.set()

    async def _do(self, wire: Wire, said: messages.Task) -> None:
        value: Any = None
        if said.do == "link" and _is_address(said.address):
            value = await links.test(said.address, said.port, said.udp, said.mark, said.token, short=said.short)
        elif said.do == "count":
            came = {token: count for token in said.tokens if (count := self.server.counted(token))}
            value = {"from": came, "overflowed": self.server.overflowed()}
        elif said.do == "ranks":
            value = await self._ask_ranks(said)
        wire.send(messages.plain(messages.Done(id=said.id, value=value)))

    async def _ask_ranks(self, said: messages.Task) -> dict[int, Any]:
        """Hand each rank its task, and wait for those that are still there."""
        waiting: dict[int, asyncio.Future[Any]] = {}
        deadline_s = min(said.deadline_s, max(self.times.until_s - time.monotonic(), 0.0))
        for number, task in said.tasks.items():
            rank = self.ranks.get(number)
            if rank is not None and self._is_sound(task):
                waiting[number] = rank.answers[said.id] = asyncio.get_running_loop().create_future()
                rank.wire.send({"is": "task", "id": said.id, "task": task, "deadline_s": deadline_s})
        if waiting:
            await asyncio.wait(waiting.values(), timeout=deadline_s + 2)
        return {number: answer.result() for number, answer in waiting.items() if answer.done() and not answer.cancelled()}

    def _is_sound(self, task: Mapping[str, Any]) -> bool:
        """Whether a rank may do it: a collective has no more ranks than the job, and its store is at an address."""
        if task.get("do") != "collective":
            return task.get("do") in ("compute", "store")
        rank, world, store = task.get("rank"), task.get("world"), task.get("store")
        if not isinstance(task.get("within_s", 0.0), (int, float)):
            return False
        if not isinstance(rank, int) or not isinstance(world, int) or not isinstance(store, list) or len(store) != 2:
            return False
        peers = task.get("timed", [])
        if not isinstance(peers, list) or (peers and rank not in peers) or len({*map(str, peers)}) != len(peers):
            return False
        are_ranks = all(isinstance(peer, int) and 0 <= peer < world for peer in peers)
        return are_ranks and 0 <= rank < world <= self.job.world and _is_address(store[0]) and isinstance(store[1], int)

    # -- our ranks ---------------------------------------------------------------------------------------------------------------------

    def _tell_ranks(self, said: dict[str, Any]) -> None:
        for rank in self.ranks.values():
            rank.wire.send(said)

    def _tell(self, message: messages.FromNode) -> None:
        if self.uplink is not None:
            self.uplink.send(messages.plain(message))

    async def _serve_rank(self, wire: local.LocalWire) -> None:
        own: _Rank | None = None
        said_goodbye = False
        try:
            while True:
                said = await wire.receive()
                if said["is"] == "rank":
                    own = self._come(wire, said)
                elif said["is"] == "note":
                    self.notes[said["key"]] = said["value"]
                    self._tell(messages.Note(key=said["key"], value=said["value"]))
                elif said["is"] == "done" and own is not None and (waiting := own.answers.pop(said["id"], None)) is not None:
                    if not waiting.done():
                        waiting.set_result(said["value"])
                elif said["is"] == "bye":
                    said_goodbye = True
        except (Gone, KeyError, ValueError):
            pass
        if own is not None and self.ranks.get(own.local) is own:
            del self.ranks[own.local]
            for waiting in own.answers.values():
                waiting.cancel()
            if not said_goodbye and not self.finished.is_set():
                self._event(own, "rank-killed", f"rank {own.rank} (process {wire.pid}) was killed or crashed")

    def _come(self, wire: local.LocalWire, said: dict[str, Any]) -> _Rank:
        number = int(said["local"])
        if self.job.agents is not None:
            number, self._agents = self._agents, self._agents + 1
            self.notes["agents"] = [*self.notes.get("agents", ()), str(said.get("label", ""))]
            self._tell(messages.Note(key="agents", value=self.notes["agents"]))
        own = self.ranks[number] = _Rank(wire, number, int(said["rank"]))
        self._tell(messages.Ranks(ranks=sorted(self.ranks)))
        if self.verdict is not None:
            wire.send(self.verdict)
        return own

    def _event(self, rank: _Rank, cause: str, seen: str) -> None:
        self.ended.setdefault(rank.local, (cause, seen))
        self._tell(messages.Event(cause=cause, seen=seen, local=rank.local))
        for waiting in rank.answers.values():
            waiting.cancel()

    async def _watch(self) -> None:
        """Look whether a rank, or what it started, is stopped."""
        empty_since_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.ranks or (self.coordinator is not None and self.coordinator.has_followers()):
                empty_since_s = time.monotonic()
            elif time.monotonic() > empty_since_s + _ALONE_S:
                self.finished.set()  # nobody is left who would hear the verdict
            for rank in list(self.ranks.values()):
                pids = (rank.wire.pid, *spare.descendants(rank.wire.pid))
                stopped = [pid for pid in pids if spare.is_stopped(pid)]
                rank.stopped = rank.stopped + 1 if stopped else 0
                if rank.stopped >= _AGREED_LOOKS and not rank.told_stopped:
                    rank.told_stopped = True
                    self._event(rank, "rank-stopped", f"process {stopped[0]} of rank {rank.rank} is stopped (state T)")


def _how_lost(wire: Wire, words: str, silence_s: float) -> tuple[str, str]:
    if "no answer" not in words:
        return "rank-killed", f"the connection ended: {words}"
    if wire.unacknowledged():
        return "link-down", f"no answer for {silence_s:.0f} s, and its kernel acknowledges nothing"
    return "rank-stopped", f"no answer for {silence_s:.0f} s, while its kernel acknowledges what is sent"


def _is_address(text: object) -> bool:
    """Whether it is written as an IPv4 address: no name is looked up because another node says so."""
    try:
        return isinstance(text, str) and bool(ipaddress.IPv4Address(text))
    except ValueError:
        return False
