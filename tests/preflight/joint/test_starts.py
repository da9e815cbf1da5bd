"""Faults around a joint pre-flight, and groups that are checked more than once (docs/preflight-faults.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import TIER
from preflight.joint import warm_torch
from preflight.joint.agents_here import environment
from preflight.joint.cluster import cluster
from preflight.joint.faults import groups, starts
from smoke.faults.bench import torch_python

pytestmark = pytest.mark.long
CI = "one-name"


def test_two_nodes_of_one_name_are_said() -> None:
    assert starts.planted(CI, warm_torch.shared(torch_python())) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in starts.FAULTS if name != CI])
def test_each_fault_around_a_start(name: str) -> None:
    assert starts.planted(name, torch_python()) == []


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("groups"))


@pytest.mark.parametrize("name", [*groups.FAULTS] if TIER == "all" else ["one-half"])
def test_a_group_is_checked_by_itself_however_often_others_were(tmp_path: Path, python: Path, name: str) -> None:
    with cluster(tmp_path, 4) as made:
        assert groups.wrong(made, python, groups.FAULTS[name]) == []
