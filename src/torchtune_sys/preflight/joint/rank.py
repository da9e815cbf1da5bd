"""One rank: it starts (or finds) the process that speaks for its node, runs the coordinator's tasks, and ends with the job's verdict."""

from __future__ import annotations

import asyncio
import os
import socket  # noqa: TID251 -- the type of the listener that is handed on
import time
from collections.abc import Callable, Mapping
from typing import Any

from torchtune_sys.host import scratch
from torchtune_sys.host.account import Account
from torchtune_sys.host.peers import detached, local
from torchtune_sys.host.peers.rank_worker import RankWorker
from torchtune_sys.host.peers.wire import Gone
from torchtune_sys.preflight.joint.agent import Agent
from torchtune_sys.preflight.joint.job import Job, Times
from torchtune_sys.smoke.script import joined

SCRIPT = "torchtune-sys/joint.py"
PARTS = (
    ("torchtune_sys.smoke.worker", "measures"),
    ("torchtune_sys.smoke.worker", "interfaces"),
    ("torchtune_sys.smoke.worker", "exchange_names"),
    ("torchtune_sys.preflight.joint.worker", "guarded_store"),
    ("torchtune_sys.preflight.joint.worker", "patterns"),
    ("torchtune_sys.preflight.joint.worker", "exchanges"),
    ("torchtune_sys.preflight.joint.worker", "rank_tasks"),
)
_MEETING_S = 20.0
_COMING_S = 15.0
"""For the node's process to answer, on a busy host."""


class Joint:
    """This rank's part in the joint pre-flight."""

    def __init__(self, job: Job, budget_s: float, meeting_s: float | None = None) -> None:
        """Start or find the node's process: first of all, while there are no threads yet. Raises Gone. ``meeting_s``: how long all are waited for."""
        self.job = job
        started_s = time.monotonic()
        self._until_s = started_s + budget_s + 4
        times = Times(started_s, budget_s, min(_MEETING_S, budget_s / 2) if meeting_s is None else meeting_s)
        self.port_was_free = local.is_free(job.ports[0])
        """Whether nobody listened at MASTER_PORT before this node's own process did."""
        self.speaks = False
        """Whether this rank judges its node: the first that came."""
        self.node = job.node
        self._link = self._come(times)
        self._parent = os.getppid()

    def _come(self, times: Times) -> local.RankLink:
        """Return the connection to the node's process. That of an earlier start of the same job hangs up, and gives way. Raises Gone."""
        job, until_s = self.job, time.monotonic() + _COMING_S
        label = {} if job.agents is None else {"label": job.agents.label}
        while True:
            listener = local.claim(job.door)
            if listener is not None:

                def speak(listener: socket.socket = listener) -> None:
                    asyncio.run(Agent(job, times).run(listener))

                self.speaks = True
                detached.start(speak, times.whole_s + 10, (listener.fileno(),))
                listener.close()
            link = local.RankLink.connect(job.door, 5.0)
            link.send({"is": "rank", "rank": job.rank, "local": job.local, **label})
            if self.speaks:
                return link
            try:
                link.receive(max(until_s - time.monotonic(), 0.1))  # that it is known there
                return link
            except Gone:
                if time.monotonic() > until_s:
                    return link
                link.close()
                time.sleep(0.05)

    def note(self, key: str, value: Any) -> None:
        """Tell the others something of this node."""
        self._link.send({"is": "note", "key": key, "value": value})

    def run(
        self, python: str, env: Mapping[str, str], user: Account | None, show: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """Do what is asked until the verdict comes; None where it does not. ``python`` is the interpreter one trains with, "" if there is none.
        Launchers have nothing to do: ranks alone train."""
        if self.job.agents is not None:
            try:
                return self._obey(None, show)
            except Gone:
                return None
            finally:
                self._link.send({"is": "bye"})
                self._link.close()
        with scratch.nameless(SCRIPT, joined(PARTS)) as script:
            argv = (python, f"/proc/self/fd/{script}")
            worker = RankWorker(argv, dict(env), script, user) if python else None
            try:
                return self._obey(worker, show)
            except Gone:
                return None
            finally:
                if worker is not None:
                    worker.end()
                self._link.send({"is": "bye"})
                self._link.close()

    def _obey(self, worker: RankWorker | None, show: Callable[[str], None]) -> dict[str, Any] | None:
        key = f"worker/{self.job.local}"
        if self.job.agents is None and (worker is None or worker.failure):
            self.note(key, {"error": worker.failure if worker is not None else "no Python to train with"})
            worker = None
        waiting = worker is not None
        while time.monotonic() < self._until_s:
            if waiting and worker is not None and (told := worker.answer(0.0)) is not None:
                self.note(key, told["value"])
                waiting = False
            said = self._link.receive(0.05 if waiting else 1.0)
            if said is None:
                if self.job.agents is not None and os.getppid() != self._parent:
                    return None  # the launcher that waits for us is gone
                continue
            if said["is"] == "verdict":
                found = said["value"]
                self.node = int(said.get("node", self.job.node))
                return found if isinstance(found, dict) else None
            if said["is"] in ("cut-off", "alone", "never", "unfit"):
                return {said["is"]: str(said["seen"]), "cause": str(said.get("cause", ""))}
            if said["is"] == "status":
                show(str(said["text"]))
            elif said["is"] == "task":
                self._link.send({"is": "done", "id": said["id"], "value": self._done(worker, said)})
        return None

    def _done(self, worker: RankWorker | None, said: Mapping[str, Any]) -> Any:
        if worker is None:
            return {"error": "no torch here"}
        return worker.ask(said["id"], said["task"], min(float(said["deadline_s"]), self._until_s - time.monotonic()))
