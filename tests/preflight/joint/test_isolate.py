"""``preflight --isolate`` on real network namespaces: the faults of docs/isolation-faults.md at nodes that a seed draws, each named and nobody else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from preflight.joint import warm_torch
from preflight.joint.cluster import cluster, preflight
from preflight.joint.faults.isolating import BUDGET_S, SCENARIOS, problems
from smoke.faults.bench import torch_python

pytestmark = pytest.mark.long
FEW, NODES, SEEDS = 4, 8, 20
CI = ("slow-one-way",)
"""What is slow; what dies and what hangs are in test_joint. The others at eight nodes, twenty seeds each, run under ``all``."""
SINGLE = ("none", "late-torch", *(f"hang-in-round-{turn}" for turn in range(1, 10)))


@pytest.mark.parametrize("name", CI)
def test_one_of_each_kind_at_few_nodes(tmp_path: Path, name: str) -> None:
    _is_named(tmp_path, name, FEW, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in SINGLE])
def test_each_fault_at_eight_nodes(tmp_path: Path, name: str, seed: int) -> None:
    _is_named(tmp_path, name, NODES, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SINGLE)
def test_a_single_hang_accuses_nobody_and_hides_nothing(tmp_path: Path, name: str) -> None:
    _is_named(tmp_path, name, NODES, 1)


def _is_named(folder: Path, name: str, nodes: int, seed: int) -> None:
    with cluster(folder, nodes) as made:
        told, expected = SCENARIOS[name](made, random.Random(seed))
        words = ("--isolate", "--lists", str(folder), *told.pop("words", ()))
        found = preflight(made, warm_torch.shared(torch_python()), **{"budget_s": BUDGET_S, "words": words, **told})
        assert not problems(expected, found)
        if name == "none":
            assert (folder / "isolation.svg").read_text().startswith("<svg ")
            assert (folder / "avoid.txt").read_text() == ""
