"""Faults of the network and of hosts, planted on real network namespaces: each is named, and nobody else; what is harmless is go."""

from __future__ import annotations

import pytest

from preflight.joint.faults.__main__ import FAULTS, planted

pytestmark = pytest.mark.long
CI = ("v6-crash",)
"""One that takes seconds, of a job of IPv6 names; the rest runs under ``all``."""


@pytest.mark.parametrize("name", CI)
def test_a_fault_is_named_and_nobody_else(name: str) -> None:
    assert not planted(name)[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in CI])
def test_each_fault_of_the_list(name: str) -> None:
    assert not planted(name)[0]
