"""Conducts the joint pre-flight: waits for the nodes, has connections and ranks tested, and gives everybody the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchtune_sys.host.peers.addresses import addresses_of, has_carrier
from torchtune_sys.host.peers.wire import Gone, Wire
from torchtune_sys.preflight.joint import judge
from torchtune_sys.preflight.joint.gathered import Compute, Event, Gathered, LinkTest, Node, WorkerNote, taken
from torchtune_sys.preflight.joint.job import Job, candidates
from torchtune_sys.preflight.joint.meeting import Map

_SILENCE_S = 8.0
_PING_S = 1.0
_LINK_S = 30.0
_READY_S = 45.0
_COMPUTE_S, _COLLECTIVE_S, _STORE_S = 20.0, 20.0, 15.0
_TABLE_FOR_ALL = 64
"""Up to so many nodes everybody learns where everybody is; above, where the candidates are."""
_ALL_PAIRS = 8
"""Up to so many nodes each pair is tested."""


class Times:
    """What the budget leaves for what; all by time.monotonic()."""

    def __init__(self, started_s: float, budget_s: float, meeting_s: float) -> None:
        self.started_s, self.whole_s = started_s, budget_s
        self.meet_until_s = started_s + meeting_s
        self.conduct_until_s = started_s + budget_s - 2
        self.until_s = started_s + budget_s + 2
        self.larger_from_s = started_s + min(5.0, meeting_s / 3)


class Member:
    """A node that follows us."""

    def __init__(self, wire: Wire, said: Mapping[str, Any]) -> None:
        self.wire = wire
        self.node = int(said["node"])
        self.address = str(said["address"])
        self.dialled = str(said["dialled"])
        self.via = said["via"]
        self.control, self.link = int(said["control"]), tuple(said["link"])
        self.ranks: list[int] = list(said["ranks"])
        self.expected = int(said["expected"])
        self.notes: dict[str, Any] = dict(said["notes"])
        self.words = {int(node): str(word) for node, word in said["words"].items()}
        self.alive = True
        self.said_goodbye = False
        self.answers: dict[str, asyncio.Future[Any]] = {}
        self.clock_offset_s: float | None = None
        self.clock_error_s = 1e9
        self.pinged_s: dict[int, tuple[float, float]] = {}

    def place(self, own: str) -> str:
        return self.address or own


class Coordinator:
    """Of all nodes that reach us."""

    def __init__(self, job: Job, times: Times, lost: Mapping[int, tuple[str, str]], where: Map) -> None:
        self.job, self.times, self.map = job, times, where
        self.members: dict[int, Member] = {}
        self.started = False
        self.over = False
        self.gathered = Gathered(nodes=job.nodes, names=job.names, locals_=job.locals_, coordinator=job.node)
        for node, (cause, seen) in lost.items():
            self._happened(node, cause, seen)
        self._changed = asyncio.Event()
        self._numbers = 0
        self._behind_bad_links: set[int] = set()
        expected = {*where.table} - {*lost} if lost else set()
        self._expected = expected or {*range(job.nodes)}
        self._meet_until_s = min(time.monotonic() + 5, times.conduct_until_s) if lost else times.meet_until_s
        self._conducting = asyncio.ensure_future(self._conduct())

    # -- members -----------------------------------------------------------------------------------------------------------------------

    async def join(self, wire: Wire, said: Mapping[str, Any]) -> None:
        """Hear a node until its connection ends."""
        member = Member(wire, said)
        node = member.node
        if not 0 <= node < self.job.nodes or self.over:
            return
        known = self.members.get(node)
        if known is not None and known.alive:
            self._happened(node, "job-launch-nested-wrongly", f"two processes say that they are node {node}")
            wire.send({"is": "refused"})
            return
        if self.started:
            wire.send({"is": "status", "text": "came too late: the others have begun"})
            self.gathered.late.add(node)
        self.members[node] = member
        wire.send({"is": "welcome"})
        for gone, (cause, seen) in said["lost"].items():
            self._happened(int(gone), cause, seen)
        for words in said["ended"].values():
            cause, _, seen = words.partition(": ")
            self._happened(node, cause, seen)
        self._changed.set()
        pinging = asyncio.ensure_future(self._ping(member))
        try:
            while True:
                self._hear(member, await wire.receive(_SILENCE_S))
        except Gone as error:
            self._gone(member, str(error))
        except (KeyError, TypeError, ValueError):
            self._gone(member, "it says what makes no sense")
        finally:
            pinging.cancel()
            wire.close()

    def _hear(self, member: Member, said: Mapping[str, Any]) -> None:
        kind = said["is"]
        if kind == "done" and (waiting := member.answers.pop(str(said["id"]), None)) is not None and not waiting.done():
            waiting.set_result(said["value"])
        elif kind == "note":
            member.notes[str(said["key"])] = said["value"]
            self._changed.set()
        elif kind == "ranks":
            member.ranks = list(said["ranks"])
            self._changed.set()
        elif kind == "event":
            self._happened(member.node, str(said["cause"]), str(said["seen"]), int(said["local"]))
        elif kind == "pong" and int(said["n"]) in member.pinged_s:
            sent_s, sent_clock_s = member.pinged_s.pop(int(said["n"]))
            taken = time.monotonic() - sent_s
            if taken < member.clock_error_s:
                member.clock_error_s = taken
                member.clock_offset_s = float(said["clock"]) - (sent_clock_s + taken / 2)

    async def _ping(self, member: Member) -> None:
        number = 0
        while True:
            number += 1
            member.pinged_s = {number: (time.monotonic(), time.time())}
            member.wire.send({"is": "ping", "n": number})
            await asyncio.sleep(_PING_S)

    def _gone(self, member: Member, words: str) -> None:
        member.alive = False
        for waiting in member.answers.values():
            waiting.cancel()
        if self.members.get(member.node) is member and not self.started:
            del self.members[member.node]  # it may come again, or was sent on
        elif not self.over:
            if "no answer" not in words:
                self._happened(member.node, "rank-killed", f"its process ended: {words}")
            elif member.wire.unacknowledged():
                self._happened(
                    member.node,
                    "link-down",
                    f"no answer for {_SILENCE_S:.0f} s, and its kernel acknowledges nothing that is sent",
                )
            else:
                seen = f"no answer for {_SILENCE_S:.0f} s, while its kernel acknowledges what is sent"
                self._happened(member.node, "rank-stopped", seen)
        self._changed.set()

    def _happened(self, node: int, cause: str, seen: str, local: int | None = None) -> None:
        self.gathered.events.append(Event(at_s=time.monotonic(), node=node, cause=cause, seen=seen, local=local))

    def has_followers(self) -> bool:
        return any(member.alive and member.node != self.job.node for member in self.members.values())

    def redirect(self, node: int, via: int) -> None:
        """Send everybody on to a better coordinator."""
        self.over = True
        self._conducting.cancel()
        for member in self.members.values():
            member.wire.send({"is": "redirect", "to": node, "via": via})

    # -- the phases --------------------------------------------------------------------------------------------------------------------

    async def _conduct(self) -> None:
        await self._until(lambda: {*self._present()} >= self._expected, self._meet_until_s)
        self.started = True
        await self._settle()
        if len(self.members) == 1 and self.job.nodes > 1 and self.job.node > 0 and not self.gathered.events:
            self.gathered.alone = True
        try:
            self._introduce()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._phases(), max(self.times.conduct_until_s - time.monotonic(), 0.1))
                self.gathered.complete = True
        except Exception as error:  # the verdict stands on what there is
            self.gathered.faults.append(f"{type(error).__name__}: {error}")
        self._give()

    async def _settle(self) -> None:
        """Look once more at who did not come: does its host answer at all?"""
        missing = [node for node in range(self.job.nodes) if node not in self.members]
        await asyncio.gather(*(self.map.dial(node) for node in missing[:32]))
        self.gathered.missing = {node: self.map.words.get(node, "") for node in missing}
        if missing and self.job.node == 0:
            meant = await addresses_of(self.job.master)
            if meant and all(has_carrier(address) is None for address in meant):
                self.gathered.master_wrong = (
                    f"MASTER_ADDR={self.job.master} stands for {', '.join(meant)}, no address of the first node"
                )
        for node in missing[:32] if self.job.names else ():
            self.gathered.resolved[node] = await addresses_of(self.job.names[node])

    async def _phases(self) -> None:
        if len(self._present()) > 1:
            self._status("testing connections")
            await self._connections()
        self._status("waiting for the facts and for torch on every node")
        await self._until(self._all_ready, time.monotonic() + _READY_S)
        self._status("an exact training step on every rank")
        await self._compute()
        self._status("collectives")
        await self._collectives()

    async def _until(self, holds: Callable[[], bool], until_s: float) -> None:
        while not holds() and (left := until_s - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _present(self) -> list[int]:
        return sorted(node for node, member in self.members.items() if member.alive)

    def _introduce(self) -> None:
        """Everybody learns where to go should we be lost."""
        dialled = [member.dialled for member in self.members.values() if member.dialled]
        own = max({*dialled}, key=dialled.count, default="")
        for member in self.members.values():
            member.address = member.place(own)
        shown = self.members if len(self.members) <= _TABLE_FOR_ALL else {*candidates(self.job.nodes)} & {*self.members}
        table = {node: (self.members[node].address, self.members[node].control) for node in shown}
        self._send_all({"is": "table", "nodes": table})

    def _send_all(self, fields: dict[str, Any]) -> None:
        for member in self.members.values():
            if member.alive:
                member.wire.send(fields)

    def _status(self, text: str) -> None:
        self._send_all({"is": "status", "text": text})

    async def _ask(self, member: Member, fields: Mapping[str, Any], deadline_s: float) -> Any:
        """What a node answers to a task; None where it does not."""
        self._numbers += 1
        name = f"{self.job.node}.{self._numbers}"
        if not member.alive:
            return None
        waiting = member.answers[name] = asyncio.get_running_loop().create_future()
        member.wire.send({"is": "task", "id": name, "deadline_s": deadline_s, **fields})
        await asyncio.wait((waiting,), timeout=deadline_s + 4)
        return waiting.result() if waiting.done() and not waiting.cancelled() else None

    async def _connections(self) -> None:
        """Each pair in each direction, one connection of a node at a time; what looks bad once more later. Where two others failed to reach a
        node, the rest only tries to connect."""
        failing: dict[int, set[int]] = {}
        for pairs in pairings(self._present()):
            for ways in (pairs, [(second, first) for first, second in pairs]):
                await self._test(ways, failing)
        await self._again()
        self._behind_bad_links = judge.behind_bad_links(self.gathered)

    async def _again(self) -> None:
        """A fault must show twice: a burst of other traffic, or a busy CPU, does not."""
        doubtful = judge.doubtful_links(self.gathered)
        while doubtful:
            now: list[tuple[int, int]] = []
            used: set[int] = set()
            for way in doubtful:
                if not used & {*way}:
                    now.append(way)
                    used |= {*way}
            doubtful = [way for way in doubtful if way not in now]
            await self._test(now, {})

    async def _test(self, ways: Sequence[tuple[int, int]], failing: dict[int, set[int]]) -> None:
        async def one(sender: int, receiver: int) -> tuple[int, int, str, Any]:
            to, token = self.members[receiver], secrets.token_hex(8)
            asked = {"do": "link", "address": to.address, "port": to.link[0], "udp": to.link[1], "token": token}
            short = any(len(failing.get(end, ())) > 1 for end in (sender, receiver))
            found = await self._ask(self.members[sender], {**asked, "short": short}, _LINK_S)
            return sender, receiver, token, found

        alive = {*self._present()}
        found = await asyncio.gather(*(one(*way) for way in ways if {*way} <= alive))
        counts = dict(zip(alive, await asyncio.gather(*(self._count(node, found) for node in alive)), strict=True))
        for sender, receiver, token, value in found:
            if not isinstance(value, dict):
                continue
            counted = counts[receiver]
            arrived = None if counted is None else int(counted["from"].get(token, 0))
            test = LinkTest.of(value, arrived, 0 if counted is None else int(counted["overflowed"]))
            self.gathered.links.setdefault((sender, receiver), []).append(test)
            if test.connect != "ok" or test.beyond is False:
                failing.setdefault(sender, set()).add(receiver)
                failing.setdefault(receiver, set()).add(sender)

    async def _count(self, node: int, found: Iterable[tuple[int, int, str, Any]]) -> Any:
        tokens = [token for _sender, receiver, token, _value in found if receiver == node]
        return await self._ask(self.members[node], {"do": "count", "tokens": tokens}, 10) if tokens else None

    def _all_ready(self) -> bool:
        """Whether everybody has told what there is to tell. Nodes that something is wrong with already are not waited for."""
        bad = {event.node for event in self.gathered.events} | self._behind_bad_links
        return all(
            "facts" in self.members[node].notes
            and "node" in self.members[node].notes
            and all(f"worker/{local}" in self.members[node].notes for local in self.members[node].ranks)
            for node in self._present()
            if node not in bad
        )

    def _ready_ranks(self, nodes: Iterable[int]) -> list[tuple[int, int]]:
        """Node and local rank of those that have torch."""
        return [
            (node, local)
            for node in nodes
            for local in self.members[node].ranks
            if (taken(self.members[node].notes.get(f"worker/{local}"), WorkerNote) or WorkerNote()).torch
        ]

    async def _ask_ranks(self, tasks: Mapping[tuple[int, int], Any], deadline_s: float) -> dict[tuple[int, int], Any]:
        nodes: dict[int, dict[str, Any]] = {}
        for (node, local), task in tasks.items():
            nodes.setdefault(node, {})[str(local)] = task

        async def one(node: int) -> Any:
            return await self._ask(self.members[node], {"do": "ranks", "tasks": nodes[node]}, deadline_s)

        found = await asyncio.gather(*map(one, nodes))
        return {
            (node, int(local)): value
            for node, answers in zip(nodes, found, strict=True)
            if isinstance(answers, dict)
            for local, value in answers.items()
        }

    async def _compute(self) -> None:
        """The training step and the timed kernel on all ranks; again where somebody was odd, so that noise must come twice."""
        ranks = self._ready_ranks(self._present())
        for turn in range(judge.TURNS_AT_MOST):
            found = await self._ask_ranks({rank: {"do": "compute", "turn": turn} for rank in ranks}, _COMPUTE_S)
            for rank, value in found.items():
                told = taken(value, Compute)
                if told is not None:
                    self.gathered.computes.setdefault(rank, []).append(told)
            if not judge.doubtful_compute(self.gathered):
                break

    async def _collectives(self) -> None:
        """All ranks of the nodes that nothing speaks against; pairs where that fails."""
        sound = [node for node in self._present() if node not in judge.unsound(self._filled())]
        ranks = self._ready_ranks(sound)
        if len(ranks) < 2:
            return
        found = await self._round([ranks])
        self.gathered.collectives.append({rank: found.get(rank) for rank in ranks})
        if all(isinstance(value, dict) and value.get("ok") for value in self.gathered.collectives[0].values()) or len(ranks) < 3:
            return
        for pairs in pairings(sound):
            groups = [[rank for rank in ranks if rank[0] in pair] for pair in pairs]
            found = await self._round(groups, short=True)
            for pair, group in zip(pairs, groups, strict=True):
                well = all((found.get(rank) or {}).get("ok") for rank in group)
                self.gathered.pair_collectives[pair] = well

    async def _round(self, groups: Sequence[Sequence[tuple[int, int]]], *, short: bool = False) -> dict[tuple[int, int], Any]:
        """Each group in children of its own, which meet at a store that outlives them."""
        host = groups[0][0]
        answer = (await self._ask_ranks({host: {"do": "store", "seconds": self.times.whole_s}}, _STORE_S)).get(host)
        if not isinstance(answer, dict) or not answer.get("port"):
            return {}
        tasks = {}
        for number, group in enumerate(groups):
            for at, rank in enumerate(group):
                tasks[rank] = {
                    "do": "collective",
                    "store": [self.members[host[0]].address if rank[0] != host[0] else "127.0.0.1", answer["port"]],
                    "prefix": f"{number}",
                    "rank": at,
                    "world": len(group),
                    "short": short,
                }
        return await self._ask_ranks(tasks, _COLLECTIVE_S / (2 if short else 1))

    # -- the verdict -------------------------------------------------------------------------------------------------------------------

    def _filled(self) -> Gathered:
        """What is known of the nodes, as judging wants it."""
        gathered = self.gathered
        gathered.members = {
            node: Node(
                node=node,
                address=member.address,
                alive=member.alive,
                via=member.via,
                ranks=tuple(member.ranks),
                expected=member.expected,
                notes=member.notes,
                words=member.words,
                clock_offset_s=member.clock_offset_s,
                clock_error_s=member.clock_error_s,
            )
            for node, member in self.members.items()
        }
        return gathered

    def _give(self) -> None:
        own = self.members.get(self.job.node)
        self.gathered.own_link_up = has_carrier(own.address) if own is not None else None
        try:
            found = judge.judged(self._filled())
        except Exception as error:  # a bug: everybody learns that nobody judged
            self._send_all({"is": "cut-off", "seen": f"judging failed (a bug): {type(error).__name__}: {error}"})
            return
        self.over = True
        statistics = {
            "lines": sum(member.wire.bytes_sent + member.wire.bytes_received for member in self.members.values()),
        }
        self._send_all({"is": "verdict", "value": found, "bytes": statistics["lines"]})


def pairings(nodes: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs: every pair once for few nodes, else as many rounds as the logarithm, in which nobody meets the same twice.

    >>> pairings([0, 1, 2])
    [[(1, 2)], [(0, 1)], [(0, 2)]]
    >>> len(pairings(range(1024)))
    12
    """
    ring: list[int | None] = [*nodes]
    if len(ring) % 2:
        ring.append(None)
    count = len(ring)
    rounds = range(count - 1)
    chosen = (
        rounds
        if count <= _ALL_PAIRS
        else [step * (count - 1) // (count.bit_length() + 1) for step in range(count.bit_length() + 1)]
    )
    found = []
    for turn in chosen:
        turned = [ring[0], *(ring[1 + (turn + at) % (count - 1)] for at in range(count - 1))]
        pairs = ((turned[at], turned[count - 1 - at]) for at in range(count // 2))
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
    return found
