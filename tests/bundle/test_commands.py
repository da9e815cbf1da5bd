"""What the tool does beside its own imports works from the self-contained file: templates, tables, children."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from bundled import start, surroundings

pytestmark = pytest.mark.long

COMMANDS = {
    "plan": ["plan", "--format=json"],
    "script": ["generate", "script"],
    "install": ["generate", "install"],
    "smoke": ["generate", "smoke"],
    "record": ["record"],
    "launch": ["launch", "--", "true"],
    "completion": ["completion", "bash"],
    "explain": ["explain", "dev-shm-too-small"],
}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return surroundings(HOME=str(tmp_path_factory.mktemp("home")))


@pytest.mark.sampled(2, 4)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_says_what_the_installed_tool_says(name: str, bundle: Path, env: dict[str, str], tmp_path: Path) -> None:
    argv, env = COMMANDS[name], {**env, "PWD": str(tmp_path)}  # which the shell sets
    ours = start(bundle, *argv, env=env, cwd=tmp_path)
    installed = start(sys.executable, "-I", "-m", "torchtune_sys", *argv, env=env, cwd=tmp_path)
    assert ours.returncode == installed.returncode, ours.stderr
    assert ours.stderr.splitlines()[:1] == installed.stderr.splitlines()[:1]
    assert ours.stdout.splitlines()[:1] == installed.stdout.splitlines()[:1]
    assert len(ours.stdout.splitlines()) == pytest.approx(len(installed.stdout.splitlines()), rel=0.02, abs=5)


def test_the_look_is_the_same(bundle: Path, env: dict[str, str], tmp_path: Path) -> None:
    """Family by family: the same facts are there, also those that only a child can tell (NVML, the interpreter)."""
    env = {**env, "PWD": str(tmp_path)}  # which the shell sets
    ours = json.loads(start(bundle, "snapshot", "--format=json", env=env, cwd=tmp_path).stdout)
    argv = [sys.executable, "-I", "-m", "torchtune_sys", "snapshot", "--format=json"]
    installed = json.loads(start(*argv, env=env, cwd=tmp_path).stdout)

    def shape(value: object) -> object:
        if not isinstance(value, dict):
            return None
        return (
            (value["$missing"], value.get("source")) if "$missing" in value else {key: shape(one) for key, one in value.items()}
        )

    assert set(ours["facts"]) == set(installed["facts"])
    for family, facts in ours["facts"].items():
        assert shape(facts) == shape(installed["facts"][family]), family


def test_it_says_what_it_holds(bundle: Path, env: dict[str, str]) -> None:
    told = json.loads(start(bundle, "--bundle-info", env=env).stdout)
    assert any(name.startswith("msgspec-") for name in told["wheels"])
    assert all(len(digest) == 64 for digest in told["wheels"].values())


def test_training_is_proven_from_it(bundle: Path, env: dict[str, str]) -> None:
    python = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "0")
    if not os.path.exists(python):
        pytest.skip("no interpreter with torch: TORCHTUNE_SYS_TEST_TORCH")
    done = start(bundle, "smoke", "--python", python, "--quick", "--no-proof", "--stages=train,checkpoint", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
