"""Which GPUs ranks have, as a launcher, a scheduler and NCCL count them: judged by what ranks tell each other, without a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smoke.faults.forked import said

pytestmark = pytest.mark.long
_ASK = """
import json, os, types
os.environ.pop("NCCL_MULTI_RANK_GPU_ENABLE", None)
def answer(function, here, *args):
    here = types.SimpleNamespace(**here)
    try:
        found = globals()[function](here, *args) if vars(here) else globals()[function](*args)
    except StageFailed as error:
        return [error.cause, error.seen]
    return found if found is not None else vars(here)
print(json.dumps([answer(*question) for question in json.loads(%r)]))
"""


def _asked(questions: list[list[Any]]) -> list[Any]:
    """Functions of the script, each with what stands for the rank's context (none for {})."""
    found: list[Any] = json.loads(said(_ASK % json.dumps(questions)))
    return found


def _rank(gpu: str, board: str, where: str = "a") -> dict[str, str]:
    return {"gpu": gpu, "board": board, "where": where, "host": where}


def test_what_ranks_tell_of_their_gpus_decides() -> None:
    slices = [_rank("MIG-1", "0:7:0"), _rank("MIG-2", "0:7:0")]
    boards = [_rank("GPU-1", "0:7:0"), _rank("GPU-2", "0:8:0")]
    hosts = [_rank("GPU-1", "0:7:0"), _rank("GPU-2", "0:7:0", "b")]
    told = {"event": "about", "host": "a", "device": "GPU 0", "gpu": "H200", "uuid": "", "gpus": 8}
    nccl = {"backend": "nccl"}
    answers = _asked(
        [
            ["_one_gpu_each", nccl, slices],
            ["_one_gpu_each", nccl, [boards[0], boards[0]]],
            ["_one_gpu_each", nccl, boards],
            ["_one_gpu_each", nccl, hosts],
            ["_one_gpu_each", nccl, [_rank("MIG-1", "MIG"), _rank("MIG-2", "MIG", "b")]],
            ["_own_gpu_after_all", {"shared": True, "backend": "gloo", "backend_wish": ""}, slices],
            ["_own_gpu_after_all", {"shared": True, "backend": "gloo", "backend_wish": ""}, [_rank("MIG-1", "MIG"), _rank("MIG-2", "MIG")]],
            ["_all_gpus_are_seen", {"gpus": 7, "gpus_wish": 8}],
            ["_all_gpus_are_seen", {"gpus": 8, "gpus_wish": 8}],
            ["_all_gpus_are_seen", {"gpus": 7, "gpus_wish": 0}],
            ["on_which_gpus", {}, [[told]]],
            ["on_which_gpus", {}, [[told], [{**told, "host": "b"}]]],
            ["on_which_gpus", {}, [[{**told, "gpus": 1, "uuid": "1"}], [{**told, "gpus": 1, "uuid": "2"}]]],
            ["on_which_gpus", {}, [[{**told, "gpu": ""}]]],
        ],
    )  # fmt: skip
    assert answers[0] == [
        "several-ranks-on-one-gpu",
        "ranks 0 and 1 on a have instances of one GPU (MIG), which NCCL takes for the same",
    ]
    assert answers[1] == ["several-ranks-on-one-gpu", "ranks 0 and 1 on a share a GPU"]
    assert answers[2:5] == [nccl] * 3
    assert all(found["backend"] == "gloo" and found["shared"] for found in answers[5:7])
    assert answers[7] == ["gpu-overlooked", "torch sees 7 of the 8 GPUs that this host shows it"]
    assert answers[8:10] == [{"gpus": 8, "gpus_wish": 8}, {"gpus": 7, "gpus_wish": 0}]
    assert answers[10:] == ["on 1 of 8 GPUs", "on 2 of 16 GPUs", "on 2 GPU(s)", ""]


def test_what_is_tried_between_gpus_fits_them_and_the_network() -> None:
    """Only GPUs of ranks are touched, since others may be another job's; what a slow network exchanges is timed less often, or not at all."""
    answers = _asked(
        [
            ["neighbours", {}, 2, 3, False],
            ["neighbours", {}, 2, 3, True],
            ["neighbours", {}, 0, 1, False],
            ["fitting", {}, 10, 0.01],
            ["fitting", {}, 10, 0.5],
            ["fitting", {}, 10, 4.0],
            ["fitting", {}, 5, 17.0],
        ],
    )
    assert answers == [[0, 1], [0], [], 10, 4, 1, 0]
