"""As many hosts as a large cluster has: the seven that drifted and nothing else, two images as two groups, in little time and memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from made_hosts import compared, facts_line, put

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import compare as benchmark

pytestmark = pytest.mark.long
HOSTS = 3000
"""Enough to tell work that grows with the square; benchmarks/compare.py takes ten thousand."""


def test_the_drift_and_nothing_else(tmp_path: Path) -> None:
    found = benchmark.measured(tmp_path, HOSTS)
    assert found["exactly the drift"], found["odd"]
    assert found["status"] == 1
    assert found["others"] == {"groups": 0, "various": 0, "incomparable": 0, "unread": 0}
    assert found["mean bytes"] <= 20_000
    assert found["MiB"] < 1024
    assert found["processor seconds"] < 30


def test_two_images_half_and_half() -> None:
    one, other = (facts_line(number, put("system/kernel", kernel)) for number, kernel in enumerate(("6.8.0-1", "6.8.0-2")))
    lines = [(one, other)[number % 2].replace(b"node-0000", b"node-%04d" % number) for number in range(HOSTS)]
    found = compared(*lines)
    assert not found.odd
    assert [len(group.hosts) for group in found.groups] == [HOSTS // 2, HOSTS // 2]
