"""What the process that speaks for a node tells of a rank that leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from torchtune_sys.host.peers.wire import Gone
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.job import job_of
from torchtune_sys.preflight.joint.own_ranks import OwnRanks


class Leaving:
    """A rank that comes, says something, and hangs up."""

    pid = 4321

    def __init__(self, *said: dict[str, Any]) -> None:
        self._said = [{"is": "rank", "rank": 1, "local": 0}, *said]

    async def receive(self) -> dict[str, Any]:
        if not self._said:
            raise Gone("closed")
        return self._said.pop(0)

    def send(self, _fields: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("said", [(), ({"is": "bye"},)], ids=["killed", "terminated"])
@pytest.mark.parametrize("is_over", [False, True])
def test_a_rank_that_leaves_before_the_verdict_is_told_however_politely(said: tuple[dict[str, Any], ...], is_over: bool) -> None:
    job = job_of({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    assert job is not None
    told: list[messages.FromNode] = []
    ranks = OwnRanks(job, 1e9, told.append)
    ranks.is_over = is_over
    leaving: Any = Leaving(*said)
    asyncio.run(ranks.serve(leaving))
    events = [each.cause for each in told if isinstance(each, messages.Event)]
    assert events == ([] if is_over else ["rank-killed"])


def test_a_rank_that_was_here_before_belongs_to_another_start_once_all_others_are_gone() -> None:
    """It was told the verdict of the first start, or that it had been killed."""
    job = job_of({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    assert job is not None

    async def twice() -> tuple[bool, bool]:
        ranks = OwnRanks(job, 1e9, lambda _message: None)
        first: Any = Leaving()
        await ranks.serve(first)
        before, second = ranks.is_superseded, Leaving()
        await ranks.serve(second)  # type: ignore[arg-type]
        return before, ranks.is_superseded

    assert asyncio.run(twice()) == (False, True)
