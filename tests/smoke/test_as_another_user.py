"""Root's smoke test of an environment that another user can change: its ranks are that user's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from conftest import TIER
from smoke.faults.forking import FORKING
from two_users import Scene, as_root, needs_root, system_minor

pytestmark = needs_root


def test_ranks_run_as_the_owner_of_the_environment(scene: Scene) -> None:
    venv = scene.alice.venv()
    scene.alice.write(scene.alice.packages(venv) / "x.pth", scene.payload() + "\n")
    subprocess.run([venv / "bin" / "python3", "-c", "pass"], check=True)
    assert scene.who_ran() == {0}
    done = as_root("smoke", "--quick", "--device", "cpu", "--no-proof", "--python", str(venv), AWS_SECRET_ACCESS_KEY="s3cret")
    seen = scene.what_ran()
    assert {mark["uid"] for mark in seen} == {scene.alice.uid}
    assert any("--launch" in str(mark["argv"]) for mark in seen), "what starts the ranks, too"
    assert "s3cret" not in str(seen) and all(mark["groups"] == [scene.alice.gid] for mark in seen)
    assert done.returncode == 1 and "cause: torch-not-installed\n" in done.stdout, done
    words = " ".join(done.stdout.split())
    assert f"training does not work: torch is not installed in {venv}/bin/python" in words and "nothing was tested" in words, done


def test_what_two_can_change_does_not_train(scene: Scene) -> None:
    venv = scene.alice.venv()
    scene.bob.write(scene.alice.packages(venv) / "bobs.pth", scene.payload() + "\n")
    done = as_root("smoke", "--quick", "--device", "cpu", "--no-proof", "--python", str(venv))
    assert scene.who_ran() == set()
    assert done.returncode == 2 and "not run as root" in done.stderr, done


@pytest.mark.long
def test_another_user_s_environment_trains(scene: Scene) -> None:
    """With a real torch, its checkpoints in a directory of theirs."""
    packages = _torch()
    venv = scene.alice.venv()
    scene.alice.write(scene.alice.packages(venv) / "torch.pth", f"{packages}\n")
    scene.alice.write(scene.alice.packages(venv) / "sitecustomize.py", FORKING if TIER != "all" else "")
    scratch = scene.alice.home / "scratch"
    scene.alice.write(scratch / "README", "")
    options = ["--stages", "train,checkpoint,rendezvous", "--device", "cpu", "--no-proof", "--format", "json"]
    done = as_root("smoke", *options, "--python", str(venv), "--scratch", str(scratch), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    team = json.loads(done.stdout)["team"]
    assert team["user"] == scene.alice.name and team["ranks"] == 2
    assert os.listdir(scratch) == ["README"], "what it made is gone"


def _torch() -> Path:
    """The packages of the tests' torch, where the Python that all users can start reads them, too."""
    python = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")
    if not python:
        pytest.skip("TORCHTUNE_SYS_TEST_TORCH names no interpreter with torch")
    asked = "import sys; from importlib.util import find_spec; print(find_spec('torch').origin); print('%d.%d' % sys.version_info[:2])"
    place, minor = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    found = Path(place).parents[1]
    if minor != system_minor() or not all(folder.stat().st_mode & 1 for folder in found.parents):
        pytest.skip("another user cannot read this torch, or has no Python for it")
    return found
