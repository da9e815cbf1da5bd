"""Faults of a fleet's reports (docs/preflight-faults.md): each is said of its hosts, and healthy oddities accuse nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet_faults import FAULTS

pytestmark = pytest.mark.long
_LARGE = ("one-setting", "some-sysctls", "half-nccl")


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in _LARGE])
def test_each_fault_of_reports(tmp_path: Path, name: str) -> None:
    assert FAULTS[name].wrong(tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", _LARGE)
def test_each_fault_of_a_thousand_hosts(tmp_path: Path, name: str) -> None:
    assert FAULTS[name].wrong(tmp_path) == []
