"""Conduct the joint pre-flight: wait for the nodes, have connections and ranks tested, and send everybody the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from torchtune_sys.host.peers.addresses import addresses_of, has_carrier, is_here, neighbours
from torchtune_sys.host.peers.wire import Gone, Wire
from torchtune_sys.preflight.joint import agents, judge, messages
from torchtune_sys.preflight.joint.compared import compared
from torchtune_sys.preflight.joint.deadlines import ready_s
from torchtune_sys.preflight.joint.gathered import EVENTS, Gathered, NodeEvent, own_names
from torchtune_sys.preflight.joint.job import Agents, Job, Times
from torchtune_sys.preflight.joint.meeting import Map
from torchtune_sys.preflight.joint.member import Member, how_lost, present
from torchtune_sys.preflight.joint.phases import Phases

_EVENTS_AT_MOST = 16
"""Of one node."""
_TOLD = 100
"""Bytes that a line counts that says who is there, or what happened to a rank."""
_WORD_S = 15.0
"""How often those that wait are told for whom."""
_JUDGED_S = 0.001
"""For each node, to compare its facts and to judge it: it takes half as long where nothing else is at work."""
_TABLE_FOR_ALL = 64
"""Up to so many nodes everybody learns where everybody is; above, where the candidates are."""


class Coordinator:
    """Of all nodes that reach us."""

    def __init__(self, job: Job, times: Times, lost: Mapping[int, tuple[str, str]], where: Map) -> None:
        self.job, self.times, self.map = job, times, where
        self.members: dict[int, Member] = {}
        self.started = False
        self.over = False
        self.gathered = Gathered(nodes=job.nodes, names=job.names, locals_=job.locals_, coordinator=job.node)
        self.gathered.agents_at_least = job.agents.least if job.agents is not None else 0
        self._changed = asyncio.Event()
        for node, (cause, seen) in lost.items():
            self._happened(node, cause, seen)
        self._passing = agents.Passing(self._changed.set)
        self._behind_bad_links: set[int] = set()
        self.free_places: set[int] = set()
        """Of launchers that went."""
        expected = {*where.table} - {*lost} if lost else set()
        self._expected = expected or {*range(job.nodes)}
        # The others of a lost coordinator notice it as late as silence may last, one after the other.
        again_s = time.monotonic() + job.silence_s + 5
        self._meet_until_s = min(again_s, times.conduct_until_s) if lost else times.meet_until_s
        self._conducting = asyncio.ensure_future(self._conduct())

    # -- members -----------------------------------------------------------------------------------------------------------------------

    async def join(self, wire: Wire, join: messages.Join) -> None:
        """Hear a node until its connection ends. Raises Gone."""
        member, node = Member(wire, join), join.node
        if node >= self.job.nodes or self.over:
            return
        known = self.members.get(node)
        if known is not None and known.alive:
            whose = " and ".join(each.wire.addresses()[1] or "this host" for each in (known, member))
            self._happened(node, "job-launch-nested-wrongly", f"two processes claim to be node {node}: at {whose}")
            wire.send(messages.plain(messages.Refused()))
            return
        if self.started:
            wire.send(messages.plain(messages.StatusText(text="joined too late: the others have started")))
        self._lives(node)
        self.members[node] = member
        self.free_places.discard(node)
        wire.send(messages.plain(messages.Welcome()))
        for gone, (cause, seen) in join.lost.items():
            if gone != self.job.node and gone not in present(self.members):  # whom we hear was not lost
                self._happened(gone, cause, seen, told_by=node)
        for local, (cause, seen) in join.ended.items():
            self._happened(node, cause, seen, local)
        self._changed.set()
        pinging = asyncio.ensure_future(self._ping(member))
        try:
            while True:
                self._hear(member, messages.from_node(await wire.receive(self.job.silence_s)))
        except Gone as error:
            self._gone(member, str(error))
        finally:
            pinging.cancel()
            wire.close()

    def _hear(self, member: Member, said: messages.FromNode) -> None:
        if isinstance(said, messages.Done):
            member.answered(said)
        elif isinstance(said, messages.Note):
            member.note(said.key, said.value)
            self._changed.set()
        elif isinstance(said, messages.Ranks):
            member.counts(_TOLD + len(said.ranks))
            member.ranks = said.ranks
            self._counts_again(member)
            self._changed.set()
        elif isinstance(said, messages.Event):
            member.counts(_TOLD)
            self._happened(member.node, said.cause, said.seen, said.local)
        elif isinstance(said, messages.Pong):
            member.ponged(said)

    def _counts_again(self, member: Member) -> None:
        """Of launchers on one host the last may go before the process that speaks for them does, and another one may come to it."""
        if self.job.agents is not None and not self.started:
            if not member.ranks:
                self.gathered.departed.add(member.node)
            elif member.node in self.gathered.departed:
                self._forget(member.node)

    async def _ping(self, member: Member) -> None:
        while True:
            member.ping()
            await asyncio.sleep(self.job.ping_s)

    def _gone(self, member: Member, words: str) -> None:
        member.gone()
        is_launcher = self.job.agents is not None
        if self.members.get(member.node) is member and not self.started and not is_launcher:
            del self.members[member.node]  # it may come again, or was sent on
        elif not self.over:
            if is_launcher and not self.started:
                self.gathered.departed.add(member.node)
                self.free_places.add(member.node)
            self._happened(member.node, *how_lost(member.wire, words, self.job.silence_s))
        self._changed.set()

    def _lives(self, node: int) -> None:
        """Note that a node lives: when its connection ended, its process had not, and it came again; and others who called it lost were wrong. A launcher's
        place may be another's now."""
        if node in self.gathered.departed:
            self._forget(node)
        self.gathered.events[:] = [
            each
            for each in self.gathered.events
            if each.node != node or (each.told_by is None and (each.cause, each.local) != ("rank-killed", None))
        ]

    def _forget(self, node: int) -> None:
        """Forget what happened to a launcher that departed: another took its place."""
        self.gathered.departed.discard(node)
        self.gathered.events[:] = [each for each in self.gathered.events if each.node != node]

    def _happened(self, node: int, cause: str, seen: str, local: int | None = None, told_by: int | None = None) -> None:
        """Only what a node can know of another is heard, and a few times."""
        known = sum(event.node == node for event in self.gathered.events)
        if cause in EVENTS and node < self.job.nodes and known < _EVENTS_AT_MOST:
            event = NodeEvent(at_s=time.monotonic(), node=node, cause=cause, seen=seen, local=local, told_by=told_by)
            self.gathered.events.append(event)
            self._changed.set()  # who waits for this node waits no longer

    def has_followers(self) -> bool:
        return any(member.alive and member.node != self.job.node for member in self.members.values())

    def redirect(self, node: int, via: int) -> None:
        """Send everybody on to a better coordinator."""
        self.over = True
        self._conducting.cancel()
        self._passing.stop()
        for member in self.members.values():
            member.wire.send(messages.plain(messages.Redirect(to=node, via=via)))

    # -- the phases --------------------------------------------------------------------------------------------------------------------

    async def _conduct(self) -> None:
        if self.job.agents is None:
            await self._until(lambda: {*present(self.members)} >= self._expected or self._is_full(), self._meet_until_s)
        else:
            await self._agents_come(self.job.agents)
        self.started = True
        await self._settle()
        if (
            self.job.agents is None
            and len(self.members) == 1
            and self.job.nodes > 1
            and self.job.node > 0
            and not self.gathered.events
        ):
            self.gathered.alone = True
        try:
            self._introduce()
            with contextlib.suppress(asyncio.TimeoutError):
                until_s = self.times.conduct_until_s - self.job.nodes * _JUDGED_S
                await asyncio.wait_for(self._phases(), max(until_s - time.monotonic(), 0.1))
                self.gathered.complete = True
        except Exception as error:  # the verdict stands on what there is
            self.gathered.faults.append(f"{type(error).__name__}: {error}")
        self._give()

    def _is_full(self) -> bool:
        """Return whether those who came have all ranks of the job: a host of the list on which there is none is not missing."""
        return self.job.agents is None and sum(each.expected for each in self.members.values() if each.alive) >= self.job.world

    async def _agents_come(self, wanted: Agents) -> None:
        """All launchers, or so many as suffice and a last call. One that went on without a pre-flight does not wait for ever."""
        await self._passing.start(wanted.endpoint_port)
        next_word_s = time.monotonic() + _WORD_S
        enough_s: float | None = None
        while True:
            self.gathered.passed = tuple(self._passing.since_s)
            # Torch's store has no authentication: where the job has a secret, strangers do not make up the number.
            here = agents.come(self._filled(), present(self.members), and_passed=not self.job.has_secret)
            self._forget_who_came_again()
            now_s = time.monotonic()
            enough_s = (now_s if enough_s is None else enough_s) if here >= wanted.least else None
            ends = [self._meet_until_s, *(first_s + agents.AFTER_PASSING_S for first_s in self._passing.since_s.values())]
            until_s = min(ends if enough_s is None else [*ends, enough_s + wanted.last_call_s])
            if here >= self.job.nodes or now_s >= until_s:
                await self._all_answer()
                if agents.come(self._filled(), present(self.members), and_passed=not self.job.has_secret) >= here:
                    return
                continue
            if now_s >= next_word_s:
                next_word_s += _WORD_S
                missing = ", ".join((*agents.absent(self._filled(), wanted, self.job.nodes).values(), *self._left()))
                self._status(f"{here} of {self.job.nodes} agents are here, waiting for {missing}")
            seen = agents.come(self._filled(), present(self.members))
            await self._until(lambda seen=seen: self._is_other(seen), min(until_s, next_word_s))  # type: ignore[misc]

    async def _all_answer(self) -> None:
        """Everybody who is counted answers once more: of a host whose link just went down nothing else is noticed for seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*(member.answers() for member in self.members.values())), self.job.silence_s + 1
            )

    def _forget_who_came_again(self) -> None:
        for node in agents.came_again(self._filled(), self.job.nodes):
            self._forget(node)
            del self.members[node]

    def _left(self) -> list[str]:
        """Launchers that came and went, as they are called."""
        named = own_names(self._filled().members)
        return [f"{named.get(node, self.job.name(node))}, which joined and left" for node in sorted(self.gathered.departed)]

    def _is_other(self, count: int) -> bool:
        """Whether another number of launchers is here."""
        return sum(len(member.ranks) for member in self.members.values() if member.alive) + len(self._passing.since_s) != count

    async def _settle(self) -> None:
        """Look once more at who did not come: does its host answer at all?"""
        missing = [] if self._is_full() else [node for node in range(self.job.nodes) if node not in self.members]
        if self.job.agents is not None:
            self.gathered.labels = agents.absent(self._filled(), self.job.agents, self.job.nodes)
            missing = [*self.gathered.labels]
            for node in missing if self.job.agents.labels else ():
                self.map.table[node] = (self.gathered.labels[node], self.job.ports[0])
        await asyncio.gather(*(self.map.dial(node) for node in missing[:32]))
        self.gathered.missing = {node: self.map.words.get(node, "") for node in missing}
        answers = {node: self.map.answers[node] for node in missing if self.map.words.get(node) == "ok"}
        self.gathered.unreached = {
            node: (me.unreached, me.master) for node, me in answers.items() if me.unreached not in ("", "ok")
        }
        if missing and self.job.node == 0:
            meant = await addresses_of(self.job.master)
            if meant and await is_here(self.job.master) is False:
                self.gathered.master_wrong = f"MASTER_ADDR={self.job.master} resolves to {', '.join([*meant[:4], *['…'] * (len(meant) > 4)])}, which is not an address of the first node (this one, by its RANK)"
        for node in missing[:32] if self.job.names else ():
            self.gathered.resolved[node] = await addresses_of(self.job.names[node])
        self.gathered.neighbours = neighbours()

    async def _phases(self) -> None:
        if self.job.agents is not None:
            self._status("waiting for the facts of every node")
            await self._all_tell()
            return
        phases = Phases(self.members, self.gathered, self.times, self.job.isolates, self.job.leaves, self.job.world)
        if len(present(self.members)) > 1:
            self._status("testing connections")
            await phases.connections()
            self._filled()
            self._behind_bad_links = judge.behind_bad_links(self.gathered)
        self._status("waiting for the facts and for torch on every node")
        await self._all_tell()
        await phases.names()
        await phases.confirm()
        self._status("an exact training step on every rank")
        await phases.compute()
        self._status("collectives")
        self.gathered.differing = await asyncio.to_thread(compared, self._filled().members)
        await phases.collectives(self._status)

    async def _all_tell(self) -> None:
        """Wait for the facts and for torch, first until half of the nodes are through, then for the others as long as those make likely."""
        began_s, here = time.monotonic(), len(present(self.members))
        left_s = self.times.conduct_until_s - began_s
        await self._until(lambda: 2 * len(self._untold()) <= here, began_s + ready_s(left_s))
        await self._until(lambda: not self._untold(), began_s + ready_s(left_s, time.monotonic() - began_s))

    async def _until(self, holds: Callable[[], bool], until_s: float) -> None:
        while not holds() and (left := until_s - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _introduce(self) -> None:
        """Everybody learns where to go should we be lost."""
        dialled = [member.dialled for member in self.members.values() if member.dialled]
        own = max({*dialled}, key=dialled.count, default="")
        for member in self.members.values():
            member.address = member.address or own
        shown = self.members if len(self.members) <= _TABLE_FOR_ALL else {*self.job.candidates} & {*self.members}
        table = {node: (self.members[node].address, self.members[node].control) for node in shown}
        self._send_all(messages.Table(nodes=table))

    def _send_all(self, message: messages.FromCoordinator, but: frozenset[int] = frozenset()) -> None:
        text = messages.encoded(message)
        for node, member in self.members.items():
            if member.alive and node not in but:
                member.wire.send_text(text)

    def _status(self, text: str) -> None:
        self.gathered.stage = text
        self._send_all(messages.StatusText(text=text))

    def _untold(self) -> list[int]:
        """Nodes that have not told all there is to tell. Those that something is wrong with already are not waited for."""
        bad = {event.node for event in self.gathered.events} | self._behind_bad_links
        return [node for node in present(self.members) if node not in bad and not self._has_told(self.members[node])]

    def _has_told(self, member: Member) -> bool:
        ranks = () if self.job.agents is not None else member.ranks
        return {"facts", "node", *(f"worker/{local}" for local in ranks)} <= {*member.notes}

    # -- the verdict -------------------------------------------------------------------------------------------------------------------

    def _filled(self) -> Gathered:
        """Return what is known of the nodes, as judging wants it."""
        gathered = self.gathered
        gathered.members = {node: member.as_gathered() for node, member in self.members.items()}
        return gathered

    def _give(self) -> None:
        self._passing.stop()
        own = self.members.get(self.job.node)
        self.gathered.own_link_up = has_carrier(own.address) if own is not None else None
        try:
            gathered = self._filled()
            if gathered.differing is None:
                gathered.differing = compared(gathered.members)
            found, brief = judge.judged(gathered), None
            if len(self.members) > _TABLE_FOR_ALL:
                brief = judge.brief(found)
        except Exception as error:  # a bug: everybody learns that nobody judged
            self._send_all(
                messages.CutOff(seen=f"judging failed (a bug): {type(error).__name__}: {error}"[: messages.TEXT_AT_MOST])
            )
            return
        self.over = True
        moved = sum(member.wire.bytes_sent + member.wire.bytes_received for member in self.members.values())
        if brief is not None:  # the candidates have all of it
            whole = frozenset(self.job.candidates)
            self._send_all(messages.JointVerdict(value=brief, bytes=moved), but=whole)
            self._send_all(messages.JointVerdict(value=found, bytes=moved), but=frozenset(self.members) - whole)
        else:
            self._send_all(messages.JointVerdict(value=found, bytes=moved))
