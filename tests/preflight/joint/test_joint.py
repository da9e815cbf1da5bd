"""The joint pre-flight on real network namespaces: each fault of docs/joint-faults.md is named, with the right part, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.joint import warm_torch
from preflight.joint.cluster import cluster, preflight
from preflight.joint.faults import FAULTS, named, problems
from smoke.faults.bench import torch_python

pytestmark = pytest.mark.long
NODES = 4
PLACES = (1, 3, 4)
CI = (("killed", 4), ("hangs-with-one", 2))
"""One that ends and one that hangs; the rest of the table, which has a node whose way to the first is cut, runs under ``all``."""
TABLE = [(name, place) for name in FAULTS for place in PLACES if (name, place) not in CI]


def test_healthy_nodes_are_go(tmp_path: Path) -> None:
    with cluster(tmp_path, NODES) as made:
        found = preflight(made, warm_torch.shared(torch_python()), words=("--lists", str(tmp_path)))
    assert [told.status for told in found.told.values()] == [0] * NODES, [told.errors[-500:] for told in found.told.values()]
    for verdict in found.verdicts():
        assert verdict["scale"] == {"nodes": NODES, "ranks": NODES}
        assert (named(verdict), verdict["links"], verdict["absent"]) == ({}, [], [])
        told = {cause["cause"] for node in verdict["nodes"] for cause in node["causes"]}
        assert "rank-variables-left" not in told, "RANK is that of the ranks that are tested"
    assert (tmp_path / "good_nodes.txt").read_text() == "n1\nn2\nn3\nn4\n"
    assert (tmp_path / "bad_nodes.txt").read_text() == ""
    assert not found.left


@pytest.mark.parametrize(("name", "place"), CI)
def test_a_fault_is_named_and_nobody_else(tmp_path: Path, name: str, place: int) -> None:
    _is_named(tmp_path, name, place)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "place"), TABLE)
def test_each_fault_at_each_place(tmp_path: Path, name: str, place: int) -> None:
    _is_named(tmp_path, name, place)


def _is_named(folder: Path, name: str, place: int) -> None:
    fault = FAULTS[name]
    with cluster(folder, NODES) as made:
        found = preflight(made, warm_torch.shared(torch_python()), **fault.plant(made, place))
        assert not problems(fault, made, place, found)
