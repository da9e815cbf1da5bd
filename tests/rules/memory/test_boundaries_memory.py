"""Memory: what lies exactly on a threshold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.facts.memory import SwapDevice
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
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


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (8 * GIB, "pass"),  # ZFS gives it back
        (GIB, "fail"),
        (Missing(Why.ABSENT, "arcstats"), "fail"),
        (Missing(Why.DENIED, "arcstats"), "unknown"),
        (Missing(Why.NOT_RECORDED, "arcstats"), "fail"),
    ],
)
def test_what_zfs_keeps_for_others_is_available(healthy: Snapshot, cache: Any, expected: str) -> None:
    facts = {"total_bytes": 100 * GIB, "available_bytes": 4 * GIB, "zfs_cache_bytes": cache}
    assert verdict(healthy, "memory-available-low", **facts) == expected
    assert verdict(healthy, "memory-available-low", **{**facts, "available_bytes": 90 * GIB}) == "pass"
