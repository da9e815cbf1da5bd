"""The process that speaks for a node: it manages its ranks, follows the coordinator, tests connections, and acts as the coordinator if it must.

It is forked by the first rank that comes and outlives all of them, so that a rank that dies is named by its own node.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket  # noqa: TID251 -- the type of the listener that the first rank hands on
import time
from typing import Any

import msgspec

from torchtune_sys.host.peers import detached, links, local
from torchtune_sys.host.peers.addresses import addresses_of, carrier_losses, hardware_addresses, unanswered_first
from torchtune_sys.host.peers.streams import listen
from torchtune_sys.host.peers.wire import BUFFER, HANDSHAKE_S, Door, Gone, LineMemory, Wire, handshake, in_small_packets
from torchtune_sys.preflight.joint import meeting, messages, seats
from torchtune_sys.preflight.joint.coordinator import Coordinator
from torchtune_sys.preflight.joint.gathered import Unable
from torchtune_sys.preflight.joint.job import Job, Times
from torchtune_sys.preflight.joint.member import how_lost
from torchtune_sys.preflight.joint.own_ranks import OwnRanks, is_address

_BACKLOG = 4096
"""Nodes that may call in the same moment (the kernel's own limit is net.core.somaxconn)."""
_CONNECTIONS = 8192
"""Of strangers, and of those who know the secret and did not say yet whether they join."""
_ROOM = 64 << 20
"""Bytes of what they say, but for the first 64 KiB of each line."""
_CHOOSING_S = 30.0
"""Time for a node that called to say what it wants."""
_TASKS_AT_MOST = 16
_LOOK_S, _CLIMB_S = 0.5, 1.0
_ALONE_S = 10.0
_PART_S = 5.0
"""For a verdict to arrive, on a machine that is busy."""
_ACKNOWLEDGED_S = 1.0
"""In which a kernel acknowledges what it gets, on a busy host, too."""


class Agent:
    """One node's."""

    def __init__(self, job: Job, times: Times) -> None:
        self.job, self.times = job, times
        self.ranks = OwnRanks(job, times.until_s, self._tell, self._finish)
        self.lost: dict[int, tuple[str, str]] = {}
        """Coordinators that we lost, with the cause."""
        self.server = links.LinkServer()
        self.control_port = 0
        self.map = meeting.Map(job, lambda: self.control_port)
        self.coordinator: Coordinator | None = None
        self.uplink: Wire | None = None
        self._better: meeting.Reached | None = None
        self.following = -1
        self._carrier_losses = carrier_losses()
        self.ranks.notes["hardware"] = hardware_addresses()
        self._carried = 0
        """Nodes whose way to the coordinator goes through us."""
        self.finished = asyncio.Event()
        self._seats = seats.Seats()
        self._door = self._callers = Door(_CONNECTIONS)
        self.room = LineMemory(_ROOM)
        self._listeners: list[asyncio.AbstractServer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Until the verdict is given to every rank, or nobody is left to give it to."""
        limit = min(_CONNECTIONS, detached.allow_connections() // 4)
        self._door, self._callers = Door(limit), Door(limit)
        await self.server.start()
        await self._open_control_port()
        self._listeners.append(await local.serve(listener, self.ranks.serve))
        works = (self.ranks.watch(), self._end_alone(), self._seek(), self._look_up())
        beside = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait_for(self.finished.wait(), self.times.until_s - time.monotonic())
            if not self.ranks.is_superseded:
                await self._part()
        except asyncio.TimeoutError:
            self.ranks.tell_all({"is": "cut-off", "seen": "no verdict came in time"})
        finally:
            for work in beside:
                work.cancel()
            self.server.stop()
            for listening in self._listeners:
                listening.close()

    @property
    def verdict(self) -> dict[str, Any] | None:
        return self.ranks.verdict

    async def _part(self) -> None:
        """Let ranks, and the nodes that follow us, take the verdict before the sockets close."""
        until_s = time.monotonic() + _PART_S
        while time.monotonic() < until_s and self._is_followed():
            await asyncio.sleep(0.05)

    def _is_followed(self) -> bool:
        return bool(self.ranks.here or self._carried) or (self.coordinator is not None and self.coordinator.has_followers())

    async def _end_alone(self) -> None:
        """End where nobody is left who would hear the verdict."""
        since_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._is_followed():
                since_s = time.monotonic()
            elif time.monotonic() > since_s + _ALONE_S:
                self._finish()

    def _finish(self) -> None:
        self.ranks.is_over = True
        self.finished.set()

    async def _open_control_port(self) -> None:
        is_candidate = self.job.node in self.job.candidates
        for port in (*(self.job.ports if is_candidate else ()), 0):
            with contextlib.suppress(OSError):
                servers, self.control_port = await listen(self._serve_node, port, limit=BUFFER, backlog=_BACKLOG)
                for server in servers:
                    in_small_packets(server)
                self._listeners += servers
                return

    # -- other nodes that call ---------------------------------------------------------------------------------------------------------

    async def _serve_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with self._door.held(writer):
                wire = await handshake(reader, writer, self.job.secret, first=False)
                wire.room, wire.line_limit = self.room, messages.NODE_LINE_AT_MOST
                asked = messages.asked(await wire.receive(HANDSHAKE_S))  # who does not know the secret has no more
            with self._callers.held(writer):
                chosen = await self._chosen(wire, asked)
            if isinstance(chosen, messages.Relay):
                await self._carry(wire, chosen.to)
            else:
                await chosen[0].join(wire, chosen[1])
        except Gone:
            pass
        finally:
            writer.close()

    async def _chosen(self, wire: Wire, asked: messages.Asked) -> messages.Relay | tuple[Coordinator, messages.Join]:
        """Hear a node until it joins, or wants to go on through us. Raises Gone."""
        while True:
            if isinstance(asked, messages.Who):
                members = len(self.coordinator.members) if self.coordinator is not None else 0
                is_alone = self.job.node != 0 and self.following in (-1, self.job.node)
                word = self.map.words.get(0, "") if is_alone else ""
                master = tuple(self.ranks.notes.get("master", ()))[:16]
                me = messages.Me(
                    node=self.job.node, key=self.job.key, members=members, unreached=word[: messages.TEXT_AT_MOST], master=master
                )
                wire.send(messages.plain(me))
            elif isinstance(asked, messages.Seat):
                wire.send(messages.plain(messages.Seated(node=self._seats.give(self.job, asked, self._free_places()))))
            elif isinstance(asked, messages.Relay):
                return asked
            elif self.coordinator is None:
                wire.send(messages.plain(messages.Redirect(to=self.following, via=self.job.node)))
            else:
                wire.room = None
                return self.coordinator, asked
            asked = messages.asked(await wire.receive(_CHOOSING_S))

    async def _carry(self, wire: Wire, to: int) -> None:
        """Until either ends: one that we left on the way would take the coordinator for dead, and ask for nodes that have their verdict already."""
        if self._carried >= self.job.nodes * len(self.job.candidates):
            raise Gone("more go through us than all nodes together need")
        self._carried += 1
        try:
            await meeting.splice(wire, self.map.places(to), lambda: wire.send({"is": "through"}))
        finally:
            self._carried -= 1

    def _free_places(self) -> set[int]:
        return self.coordinator.free_places if self.coordinator is not None else set()

    # -- where to ----------------------------------------------------------------------------------------------------------------------

    async def _seek(self) -> None:
        """Follow the lowest candidate that is reached, and be the coordinator where none is."""
        if self.job.node < 0:
            taken = await seats.take(self.job, self.times.meet_until_s)
            if taken.job is None:
                self._end(taken.end)
                return
            self.job = taken.job
            self.map = meeting.Map(self.job, lambda: self.control_port)
        if (said := await seats.begun_without_us(self.job, self.control_port)) is not None:
            self._end(said)
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
                    self._end({"is": "cut-off", "seen": self._unreached()} if is_lost else self._met_nobody())
                await asyncio.sleep(0.3)
                continue
            target = await self._follow(target)

    async def _look_up(self) -> None:
        """Tell what MASTER_ADDR stands for here: training goes there, whatever way we take."""
        if self.job.agents is not None:
            return
        found = await addresses_of(self.job.master)
        self.ranks.notes["master"] = found
        self._tell(messages.Note(key="master", value=found))
        while self.uplink is None:  # before, its host may not have started
            await asyncio.sleep(_LOOK_S)
        if silent := await unanswered_first(self.job.master, self.job.ports[0]):
            self.ranks.notes["silent"] = silent
            self._tell(messages.Note(key="silent", value=silent))

    def _met_nobody(self) -> dict[str, Any]:
        """Return what ranks are told at the end of the waiting. A launcher at the endpoint has only itself to reach, as its rendezvous has."""
        word = self.map.words.get(self.job.node, "")
        cause = {"time-out": "port-dropped", "refused": "port-refused"}.get(word)
        if self.job.agents is None or self.job.node != 0 or cause is None:
            return {"is": "cut-off", "seen": self._unreached()}
        seen = f"this host cannot reach its own port {self.control_port} ({word}): no agent would reach the rendezvous at port {self.job.agents.endpoint_port}"
        return {"is": "unfit", "cause": cause, "seen": seen}

    def _unreached(self) -> str:
        words = ", ".join(f"{self.job.name(node)}: {word}" for node, word in sorted(self.map.words.items()))
        return f"no coordinating node could be reached at {self.job.master} port {self.job.ports[0]} ({words})"

    async def _become_coordinator(self) -> meeting.Reached | None:
        if self.coordinator is None:
            self.coordinator = Coordinator(self.job, self.times, dict(self.lost), self.map)
            self.coordinator.gathered.endpoint_taken = seats.taken_by(self.job)
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
                # Who was sent nothing could acknowledge nothing.
                wire.send(messages.plain(messages.Pong(n=-1, clock=time.time())))
                await asyncio.sleep(_ACKNOWLEDGED_S)
                self.lost[target.node] = how_lost(wire, str(error), self.job.silence_s)
            return self._taken_better()
        finally:
            self.uplink = None
            if climbing is not None:
                climbing.cancel()
            wire.close()

    def _taken_better(self) -> meeting.Reached | None:
        """Return the coordinator that was found while we were one ourselves, with the way to it: there may be no other."""
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
            ranks=sorted(self.ranks.here),
            expected=self.job.locals_,
            notes=self.ranks.notes,
            words={node: word[: messages.TEXT_AT_MOST] for node, word in self.map.words.items()},
            lost=self.lost,
            ended=self.ranks.ended,
        )

    async def _climb(self, own: Wire) -> None:
        """While we are the coordinator and wait: is a better one reached by now?"""
        order = self.job.candidates
        while self.coordinator is not None and not self.coordinator.started:
            await asyncio.sleep(_CLIMB_S)
            better = await meeting.lower(self.map, order, self.job.node, self.lost)
            if better is not None and not better.members:  # it follows another, maybe us: who reaches it is not followed in turn
                better.wire.close()
                better = None
            better = better or await self._larger(order)
            if better is None or self.coordinator.started:
                if better is not None:
                    better.wire.close()
                continue
            self._better = better
            self.coordinator.redirect(better.node, self.job.node)
            own.abort()
            return

    async def _larger(self, order: tuple[int, ...]) -> meeting.Reached | None:
        """Return a later candidate that more nodes follow than us: nobody reaches us, but we reach it."""
        assert self.coordinator is not None
        if len(self.coordinator.members) * 2 > self.job.nodes or time.monotonic() < self.times.larger_from_s:
            return None
        for node in order:
            if node <= self.job.node or node in self.lost:
                continue
            reached = await self.map.dial(node)
            if reached is None:
                continue
            if reached.members > len(self.coordinator.members):
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
            now = carrier_losses()
            losses = {name: now[name] - before for name, before in self._carrier_losses.items() if now.get(name, before) > before}
            wire.send(messages.plain(messages.Pong(n=said.n, clock=time.time(), losses=losses)))
        elif isinstance(said, messages.Table):
            self.map.table.update({node: place for node, place in said.nodes.items() if node < self.job.nodes})
        elif isinstance(said, messages.StatusText):
            self.ranks.tell_all({"is": "status", "text": said.text})
        elif isinstance(said, messages.JointVerdict):
            self._end({"is": "verdict", "value": said.value, "node": self.job.node})
        elif isinstance(said, messages.CutOff):
            self._end({"is": "cut-off", "seen": said.seen})
        elif isinstance(said, messages.Refused):
            self._end({"is": "cut-off", "seen": f"another process already takes part as node {self.job.node}"})
        elif isinstance(said, messages.Task) and len(self._tasks) < _TASKS_AT_MOST:
            task = asyncio.ensure_future(self._do(wire, said))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _end(self, verdict: dict[str, Any]) -> None:
        self.ranks.verdict = verdict
        self.ranks.tell_all(verdict)
        self._finish()

    def _tell(self, message: messages.FromNode) -> None:
        if self.uplink is not None:
            self.uplink.send(messages.plain(message))

    async def _do(self, wire: Wire, said: messages.Task) -> None:
        try:
            value = await self._done(said)
        except (ConnectionError, TimeoutError, asyncio.TimeoutError):  # of a rank that just went
            value = None
        except OSError as error:  # of this host itself, as where it may open no more files
            value = None
            self._tell(messages.Note(key="unable", value=msgspec.to_builtins(Unable.of(error))))
        wire.send(messages.plain(messages.Done(id=said.id, value=value)))

    async def _done(self, said: messages.Task) -> Any:
        if said.do == "link" and is_address(said.address):
            to = said.address, said.port, said.udp, said.mark
            return await links.test(*to, said.token, short=said.short, enough_rate=said.enough_rate)
        elif said.do == "rates" and is_address(said.address):
            return {"rates": (await links.rates_of(said.address, said.port, said.mark))[0]}
        elif said.do == "count":
            came = {token: count for token in said.tokens if (count := self.server.counted(token))}
            return {"from": came, "overflowed": self.server.overflowed()}
        elif said.do == "ranks":
            return await self.ranks.ask(said)
        return None
