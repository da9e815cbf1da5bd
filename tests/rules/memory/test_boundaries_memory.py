"""Memory: what lies exactly on a threshold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.facts.memory import SwapDevice
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.rules import memory

GIB = 1 << 30


def verdict(seen: Snapshot, rule_id: str, **facts: Any) -> str:
    assert not isinstance(seen.memory, Missing)
    seen = msgspec.structs.replace(seen, memory=msgspec.structs.replace(seen.memory, **facts))
    return next(result.verdict.value for result in engine.judge(seen, memory.RULES) if result.rule.id == rule_id)


@pytest.mark.parametrize(
    ("kind", "used", "expected"),
    [("partition", 2 * GIB, "fail"), ("partition", 2 * GIB - 1, "pass"), ("file", 3 * GIB, "fail"), ("zram", 3 * GIB, "na")],
)
def test_two_gibibytes_of_swap_are_much(healthy: Snapshot, kind: str, used: int, expected: str) -> None:
    area = SwapDevice(path="/dev/x", kind=kind, size_bytes=8 * GIB, used_bytes=used)
    assert verdict(healthy, "swap-in-use", swaps=(area,)) == expected


@pytest.mark.parametrize(
    ("total", "available", "expected"),
    [
        (100 * GIB, 10 * GIB, "pass"),  # a tenth is enough
        (100 * GIB, 10 * GIB - 1, "fail"),
        (1000 * GIB, 16 * GIB, "pass"),  # and so are 16 GiB
        (1000 * GIB, 16 * GIB - 1, "fail"),
    ],
)
def test_available_memory_on_the_threshold(healthy: Snapshot, total: int, available: int, expected: str) -> None:
    assert verdict(healthy, "memory-available-low", total_bytes=total, available_bytes=available) == expected
