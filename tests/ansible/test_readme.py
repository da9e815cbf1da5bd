"""The collection's README by somebody new: its commands word by word, in a clone, with a home of their own, from nothing to the report on a fleet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import fleet
import pytest
from controller import COLLECTION, PATIENCE_S, surroundings
from ssh_machines import NOBODY_THERE, machines

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]


def commands() -> list[str]:
    """Of the first block, without what is said about them."""
    block = re.search(r"```console\n(.*?)```", (COLLECTION / "README.md").read_text(), re.S)
    assert block is not None
    return [line[2:].partition("  #")[0].strip() for line in block[1].splitlines() if line.startswith("$ ")]


def typed(argv: list[str], env: Mapping[str, str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=False, env=env, cwd=folder
    )
    return done.returncode, done.stdout + done.stderr


def test_from_nothing_to_a_report_in_three_commands(work: Path, tmp_path: Path) -> None:
    """What is made beforehand: a Python with ansible-core and what ``./run`` needs, which is here already, and an inventory."""
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    checkout = COLLECTION.parent
    if not (checkout / ".git").exists() or Path(sys.prefix).name != ".venv-test":
        pytest.skip("needs a clone of git and ./run's environment")
    subprocess.run(["git", "clone", "-q", str(checkout), str(clone)], check=True, capture_output=True)
    (clone / ".venv-test").symlink_to(sys.prefix)
    kept = {name: value for name, value in surroundings(work).items() if not name.startswith("ANSIBLE_") or "SSH" in name}
    env = {**kept, "HOME": str(home), "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))}
    make, install, check = commands()
    with machines(work, {"one": "bookworm", "two": "trixie"}) as (controller, made):
        hosts = fleet.inventory(controller, made) | {"away": {"ansible_host": NOBODY_THERE, **fleet.login(controller)}}
        rows = [f"{name} {' '.join(f'{key}={value}' for key, value in told.items())}\n" for name, told in hosts.items()]
        (clone / "inventory").write_text("".join(rows))
        check = check.replace("inventory.yml", "inventory")
        for command in (make, install):
            status, said = typed(["bash", "-c", command], env, clone)
            assert status == 0, f"{command}: {said}"
        status, said = typed(controller.inside("bash", "-c", check), env, clone)
    print(said[-3000:])
    assert "Unable to find" not in said
    assert status != 0 and "UNREACHABLE" in said and NOBODY_THERE in said, said
    recap = {line.split()[0]: line for line in said.partition("PLAY RECAP")[2].splitlines() if " ok=" in line}
    assert {name: "failed=0" in line for name, line in recap.items()} == {"one": True, "two": True, "away": False}, recap
    page = (clone / "torchtune-report/fleet.md").read_text()
    print(page[:1500])
    assert [name for name in hosts if f"| {name} |" not in page] == []
