"""The ranks of this node: which came, their tasks and answers, which ended or are stopped."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from torchtune_sys.host import processes
from torchtune_sys.host.peers import local
from torchtune_sys.host.peers.wire import Gone
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.job import Job

_LOOK_S = 0.5
_AGREED_LOOKS = 10
"""A rank that was seen stopped so often in a row is called stopped: a debugger, a scheduler or a host that is moved may stop one for some seconds."""


class Rank:
    """One that came, by the connection that it came with."""

    def __init__(self, wire: local.LocalWire, number: int, rank: int) -> None:
        self.wire, self.local, self.rank = wire, number, rank
        self.stopped = 0
        self.told_stopped = False
        self.answers: dict[str, asyncio.Future[Any]] = {}


class OwnRanks:
    """``tell`` hands the coordinator a message, ``give_way`` ends all where the job was started again. Launchers that meet are ranks, too: they are numbered
    as they come."""

    def __init__(
        self, job: Job, until_s: float, tell: Callable[[messages.FromNode], None], give_way: Callable[[], None] = lambda: None
    ) -> None:
        self._job, self._until_s, self._tell, self._give_way = job, until_s, tell, give_way
        self.here: dict[int, Rank] = {}
        self.ended: dict[int, tuple[str, str]] = {}
        """Local ranks that ended without a good-bye, and how."""
        self.notes: dict[str, Any] = {}
        self.verdict: dict[str, Any] | None = None
        """What ranks that come later are told at once."""
        self.is_over = False
        """From then on a rank may hang up."""
        self.is_superseded = False
        """A rank came that has been here before, and all others are gone: the job was started again, and another process speaks for this node."""
        self._came: set[int] = set()
        self._agents = 0

    def tell_all(self, said: dict[str, Any]) -> None:
        for rank in self.here.values():
            rank.wire.send(said)

    async def serve(self, wire: local.LocalWire) -> None:
        """Until the rank hangs up."""
        own: Rank | None = None
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
        if own is not None and self.here.get(own.local) is own:
            del self.here[own.local]
            for waiting in own.answers.values():
                waiting.cancel()
            if not self.is_over:
                self._event(own, "rank-killed", self._end_of(own, said_goodbye))
            if not self.is_over and self._job.agents is not None:
                self._tell(messages.Ranks(ranks=sorted(self.here)))

    def _end_of(self, rank: Rank, said_goodbye: bool) -> str:
        if said_goodbye and self._job.agents is None:
            return f"its pre-flight (process {rank.wire.pid}) ended before the verdict, as after SIGTERM"
        if said_goodbye:
            return "the launcher that waited for its pre-flight is gone"
        who = f"rank {rank.rank}" if self._job.agents is None else "its pre-flight"
        return f"{who} (process {rank.wire.pid}) was killed or crashed"

    def _come(self, wire: local.LocalWire, said: dict[str, Any]) -> Rank:
        """Take in a rank. Raises Gone for one of a later start of the job, for which the facts, events and verdict of this one do not hold."""
        number = int(said["local"])
        if self._job.agents is None and not self.here and number in self._came:
            self.is_superseded = True
            self._give_way()
            raise Gone("the job was started again")
        wire.send({"is": "here"})
        self._came.add(number)
        if self._job.agents is not None:
            number, self._agents = self._agents, self._agents + 1
            told = {"name": self._job.agents.name, "agents": [*self.notes.get("agents", ()), str(said.get("label", ""))]}
            self.notes.update(told)
            for key, value in told.items():
                self._tell(messages.Note(key=key, value=value))
        own = self.here[number] = Rank(wire, number, int(said["rank"]))
        self._tell(messages.Ranks(ranks=sorted(self.here)))
        if self.verdict is not None:
            wire.send(self.verdict)
        return own

    def _event(self, rank: Rank, cause: str, seen: str) -> None:
        self.ended.setdefault(rank.local, (cause, seen))
        self._tell(messages.Event(cause=cause, seen=seen, local=rank.local))
        for waiting in rank.answers.values():
            waiting.cancel()

    async def watch(self) -> None:
        """Look whether a rank, or what it started, is stopped."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for rank in list(self.here.values()):
                pids = (rank.wire.pid, *processes.descendants(rank.wire.pid))
                stopped = [pid for pid in pids if processes.state(pid) in ("T", "t")]
                rank.stopped = rank.stopped + 1 if stopped else 0
                if rank.stopped >= _AGREED_LOOKS and not rank.told_stopped:
                    rank.told_stopped = True
                    self._event(rank, "rank-stopped", f"process {stopped[0]} of rank {rank.rank} is stopped (state T)")

    async def ask(self, said: messages.Task) -> dict[int, Any]:
        """Hand each rank its task, and wait for those that are still there."""
        waiting: dict[int, asyncio.Future[Any]] = {}
        deadline_s = min(said.deadline_s, max(self._until_s - time.monotonic(), 0.0))
        for number, task in said.tasks.items():
            rank = self.here.get(number)
            if rank is not None and self._is_sound(task):
                waiting[number] = rank.answers[said.id] = asyncio.get_running_loop().create_future()
                own = {**task, **self._more(task)}
                rank.wire.send({"is": "task", "id": said.id, "task": own, "deadline_s": deadline_s})
        if waiting:
            await asyncio.wait(waiting.values(), timeout=deadline_s + 2)
        return {number: answer.result() for number, answer in waiting.items() if answer.done() and not answer.cancelled()}

    def _more(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return what no other node says: a store lasts as long as this process, and who does not know the job's secret writes nothing into it."""
        if task["do"] == "collective":
            return {"key": hmac.digest(self._job.secret, b"store " + str(task.get("prefix")).encode(), "sha256").hex()}
        return {"speaker": os.getpid()} if task["do"] == "store" else {}

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
        return are_ranks and 0 <= rank < world <= self._job.world and is_address(store[0]) and isinstance(store[1], int)


def is_address(text: object) -> bool:
    """Return whether it is written as an address, with no interface of its sender's behind it: no name is looked up because another node says so."""
    try:
        return isinstance(text, str) and "%" not in text and bool(ipaddress.ip_address(text))
    except ValueError:
        return False
