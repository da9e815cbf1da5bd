"""Which rank of which job asks, and who is paired with whom."""

from __future__ import annotations

import pytest

from torchtune_sys.preflight.joint.job import job_of
from torchtune_sys.preflight.joint.phases import pairings


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 9, 100])
def test_each_round_holds_each_node_at_most_once_and_each_pair_is_new(count: int) -> None:
    rounds = pairings(range(count))
    for pairs in rounds:
        ends = [end for pair in pairs for end in pair]
        assert len(ends) == len({*ends}) >= count - 1
    every = [pair for pairs in rounds for pair in pairs]
    assert len(every) == len({*every})
    assert count > 8 or len(every) == count * (count - 1) // 2


SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_NUM_NODES": "4"}


def test_the_job_is_read_from_each_launcher() -> None:
    job = job_of({**SLURM, "SLURM_STEP_NODELIST": "a[1-4]", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"})
    assert job is not None
    assert (job.rank, job.world, job.node, job.nodes, job.local, job.locals_, job.master) == (5, 8, 2, 4, 1, 2, "a1")
    job = job_of(
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "SLURM_NODEID": "0"}
    )
    assert job is not None
    assert (job.node, job.nodes) == (1, 2)
    assert job_of({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}) is None
    assert job_of({}) is None
