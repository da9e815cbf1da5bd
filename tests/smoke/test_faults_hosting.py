"""Faults of the host are caught by the right stage with the right cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from smoke.faults import hosting
from smoke.faults.asked import Outcomes, assert_named, cases
from smoke.faults.row import Fault


@pytest.mark.parametrize("fault", cases([fault for fault in hosting.ROWS if not fault.run]))
def test_fault_of_the_host_is_named(fault: Fault, tmp_path: Path) -> None:
    assert_named(fault, Outcomes(), tmp_path)
