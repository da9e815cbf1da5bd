"""Each fault that the look at a node, the meeting or the comparison of facts can see, under a real torchrun with the handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.joint.agents_here import environment
from preflight.joint.cluster import cluster
from preflight.joint.faults.torchrun import FAULTY, NODES, met, problems

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("torchrun"))


@pytest.mark.parametrize("name", FAULTY)
def test_each_fault_is_named_by_every_agent(tmp_path: Path, python: Path, name: str) -> None:
    with cluster(tmp_path, NODES) as made:
        found = met(made, python, FAULTY[name])
    assert problems(FAULTY[name], found) == []
