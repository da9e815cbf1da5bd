"""Assign places in the job to torchrun agents, which have no number: the agent at the endpoint assigns them, the others ask for one."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from torchtune_sys.host.live_queries.sockets import port_listeners
from torchtune_sys.host.peers import local, torch_store
from torchtune_sys.preflight.joint import meeting, messages
from torchtune_sys.preflight.joint.gathered import host_says
from torchtune_sys.preflight.joint.job import Job

_AGAIN_S = 0.5
_TRIES = 3
"""A store of a busy host may answer late."""


class Seats:
    """What the launcher at the endpoint gave away. Places are those after the first, which is its own."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        """By the token of who asked."""

    def give(self, job: Job, asked: messages.Seat, free: Collection[int] = ()) -> int:
        """Give a place, the same one for whoever asks again; where all are given away one that is free again. -1 where there is none, or another job asks."""
        if job.agents is None or asked.key != job.key or job.node != 0:
            return -1
        if asked.token not in self._given and len(self._given) + 1 >= job.nodes:
            left = next((token for token, node in self._given.items() if node in free), None)
            if left is None:
                return -1
            self._given[asked.token] = self._given.pop(left)
        return self._given.setdefault(asked.token, len(self._given) + 1)


class Taken(NamedTuple):
    """The job with a launcher's own place in it; or, where it gets none, what its ranks are told."""

    job: Job | None
    end: dict[str, Any]


async def take(job: Job, until_s: float) -> Taken:
    """Ask at the endpoint for a place until there is one, the rendezvous there has begun without us, or the time is up (monotonic)."""
    assert job.agents is not None
    token, was_open = secrets.token_hex(8), False
    while True:
        node, word = await meeting.seat(job, token)
        if node >= 0:
            return Taken(msgspec.structs.replace(job, node=node), {})
        is_open = word != "full" and await torch_store.answers(job.master, job.agents.endpoint_port)
        if word == "full" or (is_open and was_open):
            return Taken(None, _alone("all places are taken" if word == "full" else "the rendezvous has begun"))
        was_open = is_open
        if time.monotonic() > until_s:
            # Another program there, or another secret, says nothing of whether the agent came.
            return Taken(
                None, _alone(word) if word.startswith("no-greeting") else {"is": "never", "seen": host_says(word) or word}
            )
        await asyncio.sleep(_AGAIN_S)


async def begun_without_us(job: Job, control_port: int) -> dict[str, Any] | None:
    """At the endpoint: what ranks are told where a rendezvous listens at its port already, or others at all ports where we are looked for."""
    if job.agents is None or job.node != 0:
        return None
    if not local.is_free(job.agents.endpoint_port):
        for _ in range(_TRIES):
            if await torch_store.answers("127.0.0.1", job.agents.endpoint_port):
                return _alone("a rendezvous is already listening there")
    return None if control_port in job.ports else _alone("other processes are listening where the agents would meet")


def taken_by(job: Job) -> str:
    """Return, at the endpoint, before we listen there, who holds the port of the launchers' own rendezvous; "" where nobody does."""
    if job.agents is None or job.node != 0 or local.is_free(job.agents.endpoint_port):
        return ""
    found = port_listeners(str(job.agents.endpoint_port), 1.0)
    whose = f"of uid {', '.join(map(str, found))} " if isinstance(found, list) and found else ""
    port = job.agents.endpoint_port
    return f"a program {whose}that is not torchrun's rendezvous is listening on port {port}: give --rdzv-endpoint another port"


def _alone(seen: str) -> dict[str, Any]:
    return {"is": "alone", "seen": seen}
