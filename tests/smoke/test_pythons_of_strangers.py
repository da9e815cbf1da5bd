"""What another user makes of the Python that root examines, trains with and gives a time (docs/attacks.md)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from two_users import SYSTEM_PYTHON, Scene, as_root, needs_root

pytestmark = needs_root
SWAPS = """
import os, sys
place, theirs, own = sys.argv[1:]
os.chdir(place)
with open("own", "w") as file:
    file.write(own)
os.chmod("own", 0o755)
while True:
    for make, what in ((os.symlink, theirs), (os.link, "own")):
        make(what, "new")
        os.rename("new", "python3")
"""
SILENT = "#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do /bin/sleep 1000; done\n"


def run_as_nobody_else(scene: Scene, place: Path, *words: str) -> None:
    done = as_root(*words, "--python", str(place))
    assert scene.who_ran() <= {scene.alice.uid} and done.returncode in (0, 1, 2, 3), done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("command", ["check -q", "smoke --quick --device cpu --stages import --timeout 30"])
def test_a_python_that_its_owner_exchanges_all_the_time_never_runs_as_root(scene: Scene, command: str) -> None:
    place = scene.alice.venv() / "bin"
    words = [SYSTEM_PYTHON, "-c", SWAPS, str(place), SYSTEM_PYTHON, scene.shell_payload()]
    racer = subprocess.Popen(words, user=scene.alice.uid, group=scene.alice.gid, extra_groups=[])
    try:
        while not scene.who_ran():
            subprocess.run([str(place / "python3"), "-c", ""], check=False)  # root, plainly
        for _ in range(2):
            run_as_nobody_else(scene, place / "python3", *command.split())
        assert racer.poll() is None, "nobody raced"
    finally:
        racer.kill()
        racer.wait()


def test_a_python_that_does_not_answer_costs_no_more_than_the_whole_time(scene: Scene) -> None:
    """The look of the smoke test, 10 s, counted nowhere, nor in preflight's --budget: a scheduler's own limit ends a Prolog, and drains the node."""
    python = scene.alice.write(scene.alice.home / "bin" / "python3", SILENT, 0o755)
    done = as_root("smoke", "--quick", "--device", "cpu", "--timeout", "12", "--python", str(python), "--format", "json")
    assert json.loads(done.stdout)["seconds"] < 15, done.stdout
