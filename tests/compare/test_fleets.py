"""The list of fleets: who must be named of each, and who must not."""

from __future__ import annotations

import pytest
from fleet_rows import FLEETS
from fleets import wrong

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", FLEETS)
def test_each_fleet(name: str) -> None:
    assert wrong(FLEETS[name]) == []
