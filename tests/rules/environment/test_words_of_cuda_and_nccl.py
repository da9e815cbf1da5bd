"""Values of CUDA's and NCCL's variables that mean another thing than their writer thought."""

from __future__ import annotations

import msgspec
import pytest
from altered import with_env

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.rules.environment import RULES

RULE = {rule.id: rule for rule in RULES}
PASS, FAIL = Verdict.PASS, Verdict.FAIL


@pytest.mark.parametrize(("ranks", "nodes", "expected"), [(1, 1, PASS), (2, 1, FAIL), (1, 2, FAIL), (None, None, FAIL)])
def test_one_channel_binds_where_several_ranks_meet(ranks: int | None, nodes: int | None, expected: Verdict) -> None:
    seen = with_env(load("healthy"), {"NCCL_MAX_CTAS": "1"})
    asked = msgspec.structs.replace(seen, intent=Workload(ranks=ranks, nodes=nodes))
    assert engine.judge(asked, [RULE["fast-path-switched-off"]])[0].verdict is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CUDA_DEVICE_ORDER", "pci_bus_id", []),
        ("CUDA_DEVICE_ORDER", "BUS_ID", ["CUDA_DEVICE_ORDER=BUS_ID: CUDA does not know it"]),
        ("CUDA_MODULE_LOADING", "EAGER", []),
        ("CUDA_MODULE_LOADING", "", []),
    ],
)
def test_words_that_cuda_knows(name: str, value: str, expected: list[str]) -> None:
    told = engine.judge(with_env(load("healthy"), {name: value}), [RULE["variable-without-effect"]])[0].evidence
    assert [item.seen for item in told] == expected
