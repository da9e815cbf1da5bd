"""Faults of a node, planted for real: each is named with who can mend it, by the facts of that node alone."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from conftest import exhaustive
from preflight import planted

ALWAYS = (
    "2 tiny /dev/shm",
    "3 name at 127.0.1.1, two nodes",
    "4 name at 127.0.1.1, one node",
    "11 /tmp full",
    "18 slurmd's own limits",
    "28d a /tmp in memory, more than half used",
)


@pytest.mark.parametrize("name", [*ALWAYS, *exhaustive(*(name for name in planted.FAULTS if name not in ALWAYS))])
def test_a_planted_fault_is_named(name: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # some of them cover /tmp
        _is_named(planted.FAULTS[name], Path(folder))


def _is_named(fault: planted.Fault, folder: Path) -> None:
    env = {name: value for name, value in fault.env.items() if "IFNAME" not in name}
    plain = fault._replace(plant=planted.NET if fault.network else "", group={}, env=env)
    try:
        without = Counter() if fault.words else planted.named(planted.found(plain, folder / "without"))
        document = planted.found(fault, folder / "with")
    except planted.Unavailable as why:
        pytest.skip(str(why))
    more = planted.named(document) - without
    assert set(fault.named) <= set(more)
    assert {one for one in more if one.startswith("fatal")} == {one for one in fault.named if one.startswith("fatal")}
    if not {one for one in without if not one.startswith("warning")}:
        assert document["verdict"] == fault.verdict
