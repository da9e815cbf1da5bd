"""A real quota on a real parent cgroup is found from a process in its child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
LOOK = """
import sys
open(sys.argv[1], "w").write("0")
from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.probes.cpu import probe as cpu
facts = cpu.probe(LiveHost(), Workload())
print(facts.quota, facts.quota_source, facts.effective)
"""


@pytest.fixture
def parent() -> Iterator[Path]:
    """A new cgroup with a quota of half a CPU, of whichever version this host has; skipped where none may be made."""
    top = ROOT / "cpu" if (ROOT / "cpu/cpu.cfs_quota_us").exists() else ROOT
    place = top / f"torchtune-sys-test-{os.getpid()}"
    try:
        (place / "child").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup may be made here: {error}")
    try:
        if (place / "cpu.cfs_quota_us").exists():
            (place / "cpu.cfs_quota_us").write_text("50000")
        elif (place / "cpu.max").exists():
            (place / "cpu.max").write_text("50000 100000")
        else:
            pytest.skip("the cpu controller is not handed down to new cgroups here")
        yield place
    finally:
        (place / "child").rmdir()
        place.rmdir()


def test_a_parents_quota_is_seen_from_its_child(parent: Path) -> None:
    argv = [sys.executable, "-c", LOOK, str(parent / "child/cgroup.procs")]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    quota, source, effective = found.stdout.split()
    assert (float(quota), float(effective)) == (0.5, 0.5)
    assert source.startswith(str(parent)) and "/child/" not in source
