"""Ranks against visible GPUs: who is asked, and how the GPUs are counted."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys.model.rule import Verdict


@pytest.mark.parametrize(
    ("env", "ranks", "expected"),
    [
        ({}, 8, Verdict.PASS),
        ({}, 9, Verdict.FAIL),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 4, Verdict.PASS),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, 5, Verdict.FAIL),
        ({"CUDA_VISIBLE_DEVICES": "0,9"}, 2, Verdict.NA),  # another rule's finding
        ({"CUDA_VISIBLE_DEVICES": "0", "LOCAL_RANK": "0"}, 8, Verdict.NA),  # a worker that was given its own GPU
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_LOCALID": "3"}, 8, Verdict.NA),
        ({}, 0, Verdict.NA),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, 9, Verdict.NA),  # NCCL 2.30 and later
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, 9, Verdict.FAIL),
    ],
)
def test_a_gpu_for_each_rank(env: dict[str, str], ranks: int, expected: Verdict) -> None:
    overlay: dict[str, Any] = {"env": env, "intent": {"ranks": ranks}}
    assert judge(load("healthy", **overlay))["several-ranks-on-one-gpu"].verdict is expected
