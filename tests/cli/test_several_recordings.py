"""Recordings of several hosts, as somebody has them who reads the README: what each command says of a folder, a file, and the hosts in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driven import HOSTS, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("healthy", "healthy", "memlock-limit-too-low.fail"), 1):
        found = run("record", "--from", f"{HOSTS}/{name}.json", "-o", str(tmp_path / f"node{number}.json"))
        assert found.returncode == 0, found.stderr
    return tmp_path


def test_hosts_whose_names_are_replaced_are_named_by_their_files(folder: Path) -> None:
    found = run("compare", str(folder))
    assert "  node3\n" in found.stdout and "8388608 (usually unlimited)" in " ".join(found.stdout.split())
    told = json.loads(run("compare", str(folder), "--format", "json").stdout)
    assert {item["host"] for item in told["odd"]} == {"node3"}


def test_a_folder_of_recordings_is_no_host(folder: Path) -> None:
    found = run("check", "--from", str(folder))
    assert found.returncode == 2
    assert "is a directory of files" in found.stderr and "torchtune-sys compare DIR" in found.stderr


def test_what_comes_next_is_meant_for_the_recorded_host(folder: Path) -> None:
    checked = run("check", "--from", str(folder / "node3.json")).stdout
    assert "torchtune-sys plan with the same --from" in checked
    planned = " ".join(run("plan", "--from", str(folder / "node3.json")).stdout.split())
    assert "on that host, sudo torchtune-sys apply" in planned
