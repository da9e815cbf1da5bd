"""Stacks of threads against what the kernel lets one process map."""

from __future__ import annotations

from typing import Any

import pytest
from limits_hosts import DENIED, FAIL, GIB, NA, PASS, UNKNOWN, changed, judged, limited

from conftest import load
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot

RULE = "thread-stack-larger-than-memory"


@pytest.mark.parametrize(
    ("mode", "stack", "expected"),
    [
        ("0", 24 * GIB, PASS),
        ("0", 24 * GIB + 1, FAIL),
        ("0", None, NA),
        ("1", 1000 * GIB, NA),
        ("2", 10 * GIB, PASS),
        ("2", 10 * GIB + 1, FAIL),
    ],
)
def test_the_limit_at_the_mark(mode: str, stack: int | None, expected: Verdict) -> None:
    host = load("healthy", files={"/proc/sys/vm/overcommit_memory": mode})
    seen = changed(host, "memory", total_bytes=20 * GIB, swap_total_bytes=4 * GIB, commit_limit_bytes=10 * GIB)
    assert judged(limited(seen, "stack", stack), RULE).verdict is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OMP_STACKSIZE", "24G", PASS),
        ("OMP_STACKSIZE", "25g", FAIL),
        ("GOMP_STACKSIZE", "26214400", FAIL),
        ("OMP_STACKSIZE", "100T", PASS),  # refused: as if it were unset
        ("OMP_STACKSIZE", "", PASS),
    ],
)
def test_stacks_of_openmp(name: str, value: str, expected: Verdict) -> None:
    seen = changed(load("healthy", env={name: value}), "memory", total_bytes=24 * GIB, swap_total_bytes=0)
    assert judged(seen, RULE).verdict is expected


@pytest.mark.parametrize("hidden", [{"total_bytes": DENIED}, {"swap_total_bytes": DENIED}])
def test_memory_that_cannot_be_seen(healthy: Snapshot, hidden: dict[str, Any]) -> None:
    assert judged(changed(healthy, "memory", **hidden), RULE).verdict is UNKNOWN
