"""A node that speaks on the loopback, for hostile peers to talk to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from torchtune_sys.host.peers import local
from torchtune_sys.host.peers.wire import call
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.agent import Agent
from torchtune_sys.preflight.joint.job import Job, Times

SECRET = b"the job's own"
HERE = "127.0.0.1"
WHO = messages.plain(messages.Who())


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("", 0))
        return int(held.getsockname()[1])


def job(node: int, ports: tuple[int, ...], secret: bytes = SECRET) -> Job:
    key = f"test-{os.getpid()}-{time.monotonic_ns()}"
    place: dict[str, Any] = {"rank": node, "world": 3, "local": 0, "locals_": 1, "node": node, "nodes": 3}
    return Job(**place, names=(HERE, "192.0.2.1", "192.0.2.2"), master=HERE, ports=ports, secret=secret, key=key)


@contextlib.asynccontextmanager
async def speaking(own: Job, budget_s: float = 60) -> AsyncIterator[Agent]:
    """A node's process, here in this one, with one rank that says nothing."""
    agent = Agent(own, Times(time.monotonic(), budget_s, budget_s / 2))
    listener = local.claim(f"{own.key}-{own.node}")
    assert listener is not None
    running = asyncio.ensure_future(agent.run(listener))
    rank = local.RankLink.connect(f"{own.key}-{own.node}", 5)
    rank.send({"is": "rank", "rank": own.rank, "local": 0})
    try:
        await until(lambda: agent.control_port > 0 and bool(agent.ranks.here))
        yield agent
    finally:
        running.cancel()
        if agent.coordinator is not None:
            agent.coordinator.redirect(-1, 0)
        rank.close()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    end_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end_s, "it did not come"
        await asyncio.sleep(0.02)


def ran(work: Callable[[], Awaitable[None]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of connections that the other side broke off
        asyncio.run(work())  # type: ignore[arg-type]
        gc.collect()


async def answers(agent: Agent, secret: bytes = SECRET) -> bool:
    """Whether a node of the job is heard."""
    link = await call(HERE, agent.control_port, secret, 20)
    link.send(WHO)
    found = messages.me(await link.receive(20))
    link.close()
    return found.node == agent.job.node


async def is_closed(reader: asyncio.StreamReader, within_s: float) -> bool:
    try:
        while await asyncio.wait_for(reader.read(1 << 16), within_s):
            continue
    except ConnectionError:
        return True
    except asyncio.TimeoutError:
        return False
    return True
