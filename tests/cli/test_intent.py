"""What the person means to run: options, recording, environment."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.cli.options import INTENT
from torchtune_sys.cli.workload import from_environment, intent_of
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload

NOTHING: dict[str, Any] = {**dict.fromkeys(INTENT), "data": (), "checkpoints": (), "live": False}


def recorded(env: dict[str, str] | None = None, **intent: Any) -> RecordedHost:
    return RecordedHost({"env": env or {}, "intent": intent}, "recording x.json")


def test_every_field_of_the_intent_has_an_option() -> None:
    assert set(INTENT) == set(Workload.__struct_fields__)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {}),
        ({"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "32"}, {"ranks": 8, "nodes": 4}),
        ({"WORLD_SIZE": "32"}, {}),
        ({"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "12"}, {"ranks": 8}),
        ({"SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2"}, {"nodes": 2}),
        ({"SLURM_TASKS_PER_NODE": "4(x3)", "SLURM_JOB_NUM_NODES": "3"}, {"ranks": 4, "nodes": 3}),
        ({"SLURM_NTASKS_PER_NODE": "4", "LOCAL_WORLD_SIZE": "8"}, {"ranks": 8}),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"}, {"ranks": 2, "nodes": 1}),
        ({"OMP_NUM_THREADS": "4,2"}, {"threads": 4}),
        ({"OMP_NUM_THREADS": "0", "LOCAL_WORLD_SIZE": "-1", "SLURM_NNODES": "x"}, {}),
        ({"OMP_NUM_THREADS": "²", "LOCAL_WORLD_SIZE": "9" * 40}, {}),
    ],
)
def test_the_jobs_environment(env: dict[str, str], expected: dict[str, int]) -> None:
    assert from_environment(env) == expected
    assert intent_of(NOTHING, recorded(env)) == Workload(**expected)


@given(
    st.dictionaries(st.sampled_from(["WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "SLURM_NNODES"]), st.text(max_size=12))
)
def test_any_environment_gives_positive_numbers_or_nothing(env: dict[str, str]) -> None:
    assert all(value > 0 for value in from_environment(env).values())


def test_options_win_over_the_recording_and_that_over_the_environment() -> None:
    host = recorded({"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "3"}, ranks=4, workers=0, data=["/d"], python="/p/python3")
    assert intent_of(NOTHING, host) == Workload(ranks=4, threads=3, workers=0, data=("/d",), python="/p/python3")
    said = {**NOTHING, "ranks": 8, "workers": 0, "data": ("/e",), "live": True}
    assert intent_of(said, host) == Workload(ranks=8, threads=3, workers=0, data=("/e",), python="/p/python3", live=True)


def test_paths_are_made_absolute_on_this_machine_only() -> None:
    said = {**NOTHING, "data": ("x",), "python": "venv/bin/python3"}
    assert intent_of(said, LiveHost()).data == (os.path.abspath("x"),)
    assert intent_of(said, LiveHost()).python == os.path.abspath("venv/bin/python3")
    assert intent_of({**NOTHING, "python": "python3.12"}, LiveHost()).python == "python3.12"
    assert intent_of(said, recorded()).data == ("x",)


@pytest.mark.parametrize("intent", [{"ranks": "8"}, {"ranks": True}, {"ranks": -1}, {"data": "/d"}, {"live": 1}, {"speed": 3}])
def test_a_recording_with_a_wrong_intent_is_refused(intent: dict[str, Any]) -> None:
    with pytest.raises(UnreadableInput):
        intent_of(NOTHING, recorded(**intent))


def test_no_workers_is_an_answer_too() -> None:
    options = {**dict.fromkeys(INTENT), "workers": 0, "live": False}
    assert intent_of(options, RecordedHost({"intent": {"workers": 4}}, "x")).workers == 0
