"""Seats on every recorded host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from seats import broken

import platforms
import platforms_more
from conftest import HOSTS
from platforms_troubled import TROUBLED
from torchtune_sys import engine
from torchtune_sys.host.base import Host
from torchtune_sys.host.open import open_host
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.values import Missing
from torchtune_sys.planner.placement import seating
from torchtune_sys.probes import room

MADE = {**platforms.PLATFORMS, **platforms_more.MORE, **TROUBLED}
TYPICAL = sorted(path.stem for path in (HOSTS / "typical").glob("*.json"))
TREES = Path(os.environ.get("TORCHTUNE_SYS_HOSTS_DIR") or Path(__file__).resolve().parents[3] / "shared" / "hosts")
FAMILIES = ("session", "cpu", "numa", "pci", "gpu")


def placed(host: Host, intent: Intent) -> list[str]:
    """What is broken, for as many ranks as the host says, and for one to nine."""
    s = engine.Look(host, intent, only=FAMILIES).end(20)
    place = room.probe(host)
    return [line for ranks in (intent.ranks, 1, 2, 3, 8, 9) for line in broken(s, place, seating(s, place, ranks))]


@pytest.mark.parametrize("name", [*MADE, *(f"typical/{name}" for name in TYPICAL), "healthy"])
def test_on_recorded_hosts(name: str) -> None:
    recording = MADE[name]() if name in MADE else load_recording(str(HOSTS / f"{name}.json"))
    intent = Intent(ranks=recording.get("intent", {}).get("ranks"))
    assert placed(RecordedHost(recording, name), intent) == []


@pytest.mark.parametrize(
    "path", sorted((*TREES.glob("hwloc/*.tar.bz2"), *TREES.glob("ghw/*.tar.gz"))), ids=lambda path: path.name
)
def test_on_real_trees(path: Path) -> None:
    host = open_host(str(path))
    s = engine.Look(host, Intent(), only=FAMILIES).end(20)
    if isinstance(s.cpu, Missing) or isinstance(s.cpu.online, Missing):
        pytest.skip("the tree has no CPUs")
    assert placed(host, Intent()) == []


def test_trees_are_here() -> None:
    if not TREES.is_dir():
        pytest.skip(f"no recorded hosts in {TREES} (set TORCHTUNE_SYS_HOSTS_DIR)")
    assert len(list(TREES.glob("hwloc/*.tar.bz2"))) > 10
