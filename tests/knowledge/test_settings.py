"""The table of system settings is whole, and its rows are found by the keys that are judged."""

from __future__ import annotations

import pytest

from torchtune_sys.knowledge.settings import about, settings
from torchtune_sys.rules.sysctl_wishes import WISHES


def test_every_row_has_a_source_and_a_confidence() -> None:
    assert len(settings()) > 30
    assert all(row.source and row.confidence in {"high", "medium", "low"} for row in settings())


@pytest.mark.parametrize(
    "key",
    [
        "vm.swappiness",
        "net.core.wmem_max",
        "net.ipv4.tcp_congestion_control",
        "vm.dirty_background_ratio",
        "net.ipv4.conf.ib0.rp_filter",
    ],
)
def test_rows_are_found_by_key(key: str) -> None:
    assert about(key) is not None


def test_what_is_not_in_the_table_is_none() -> None:
    assert about("vm.laptop_mode") is None


@pytest.mark.parametrize("key", [wish.key for wish in WISHES])
def test_each_judged_key_is_in_the_table(key: str) -> None:
    assert about(key) is not None
