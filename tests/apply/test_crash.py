"""Killed at every system call that writes or syncs, in apply and in undo: afterwards ``undo`` restores everything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MOST = 400


def can_mount() -> bool:
    return os.geteuid() == 0 and not subprocess.run(("unshare", "--mount", "true"), capture_output=True, check=False).returncode


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="needs root that may mount"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]


@pytest.mark.parametrize("what", ["apply", "undo"])
def test_every_point(what: str, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, str(HERE / "crash_machine.py")]
    done = subprocess.run([*command, str(stage), what, str(MOST)], capture_output=True, text=True, timeout=900, check=False)
    points = [json.loads(line) for line in done.stdout.splitlines()]
    killed = [point for point in points if point["killed"]]
    print(f"{what}: killed at {len(killed)} points, {sum(point['changed'] for point in killed)} of them with something changed")
    assert done.returncode == 0, done.stderr
    assert len(killed) > 30
    assert any(point["changed"] for point in killed)
    assert [point for point in points if point["wrong"] or point["undo"]] == []
