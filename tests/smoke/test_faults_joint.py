"""Faults that share a run, each in a stage of its own, are caught by the right stage with the right cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from smoke.faults.asked import Outcomes, assert_named, cases
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.mark.parametrize("fault", cases([fault for fault in FAULTS if fault.run]))
def test_fault_is_named_beside_others(fault: Fault, outcomes: Outcomes, tmp_path: Path) -> None:
    assert_named(fault, outcomes, tmp_path)
