"""Started by root, the self-contained file runs no interpreter that somebody else may change."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bundled import NOBODY, good, interpreters, start, surroundings, system_python

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def by_a_folder(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)


def by_the_file(folder: Path) -> None:
    os.chown(folder / "python3", NOBODY, NOBODY)


def by_a_folder_of_all(folder: Path) -> None:
    folder.chmod(0o777)


def by_a_group(folder: Path) -> None:
    os.chown(folder / "python3", 0, NOBODY)
    (folder / "python3").chmod(0o775)


def by_a_link_on_the_way(folder: Path) -> None:
    """Both ends are root's."""
    theirs = folder.with_name("theirs")
    theirs.mkdir()
    (folder / "python3").rename(folder / "real")
    (theirs / "between").symlink_to(folder)
    (folder / "python3").symlink_to("../theirs/between/real")
    os.chown(theirs, NOBODY, NOBODY)


STEERED = (by_a_folder, by_the_file, by_a_folder_of_all, by_a_group, by_a_link_on_the_way)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A folder with a python3 that leaves a file where it was started, and would do."""
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    (folder / "python3").write_text(f"#!/bin/sh\n: >{tmp_path}/started\n")
    (folder / "python3").chmod(0o755)
    return folder


def without_the_systems(bundle: Path, place: Path) -> Path:
    place.write_bytes(re.sub(rb"(/usr/\S+/(platform-)?pytho)n", rb"\1X", bundle.read_bytes()))
    return place


@pytest.mark.sampled(1, 2)
@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
def test_one_that_is_roots_is_taken(shell: str, bundle: Path, first: Path, tmp_path: Path) -> None:
    (first / "python3").rename(first / "real")
    (first / "python3").symlink_to("../bin/./real")
    assert start(*in_shell(shell), bundle, "--version", env=surroundings(PATH=str(first))).returncode == 0
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize("steered", STEERED)
def test_the_next_one_is_taken(steered: Callable[[Path], None], bundle: Path, first: Path, tmp_path: Path) -> None:
    system_python()
    steered(first)
    done = start(bundle, "--version", env=surroundings(PATH=str(first), HOME=str(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("torchtune-sys")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
def test_where_there_is_no_other_it_says_so(shell: str, bundle: Path, first: Path, tmp_path: Path) -> None:
    by_a_folder(first)
    copy = without_the_systems(bundle, tmp_path / "tt.pyz")
    done = start(*in_shell(shell), copy, "--version", env={"PATH": str(first)})
    assert done.returncode == 2
    assert done.stderr.startswith("torchtune-sys: root takes from PATH no Python that others may change")
    assert done.stderr.endswith(f"such as {first}/python3, and there is no other; trust it by its name: {first}/python3 {copy}\n")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("folder", [".", "bin"])
def test_a_folder_without_a_root_is_nobodys(folder: str, bundle: Path, first: Path, tmp_path: Path) -> None:
    copy = without_the_systems(bundle, tmp_path / "tt.pyz")
    done = start("/bin/sh", copy, "--version", env={"PATH": folder}, cwd=first if folder == "." else tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("steered", STEERED)
def test_nor_is_a_better_one_looked_for_there(steered: Callable[[Path], None], bundle: Path, first: Path, tmp_path: Path) -> None:
    """By an interpreter that the file is not for."""
    copy = tmp_path / "tt.pyz"
    copy.write_bytes(re.sub(rb"cpython-3..", rb"cpython-399", bundle.read_bytes()))
    python = interpreters()[good()[-1]]
    assert f"run: {first}/python3" in start(python, copy, env=surroundings(PATH=str(first))).stderr
    (tmp_path / "started").unlink()
    steered(first)
    assert start(python, copy, env=surroundings(PATH=str(first))).returncode == 2
    assert not (tmp_path / "started").exists()


def in_shell(name: str) -> list[str]:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return [path, "sh"] if name == "busybox" else [path]


@pytest.mark.parametrize("name", ["-cimport os; os.mkdir('got-in')", "-", "-imain"])
def test_a_name_that_begins_with_a_hyphen_is_no_option_of_the_interpreter_s(name: str, bundle: Path, tmp_path: Path) -> None:
    """``sh -- *`` in a folder with such a file: what the name says was run, or what standard input held."""
    home, hers = tmp_path / "home", tmp_path / "hers"
    home.mkdir()
    hers.mkdir()
    shutil.copy(bundle, hers / name)
    given = "import os; os.mkdir('got-in')"
    done = start("sh", "--", name, "--version", env=surroundings(HOME=str(home)), cwd=hers, input=given)
    assert done.stdout.startswith("torchtune-sys, version"), done
    assert os.listdir(hers) == [name]


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox"])
def test_what_is_read_from_standard_input_starts_no_file_of_the_shell_s_name(shell: str, bundle: Path, tmp_path: Path) -> None:
    """``curl … | sudo sh`` in another user's folder: a file ``sh`` of the same size was run by the interpreter."""
    text = f"open('got-in', 'w')\n#{'x' * bundle.stat().st_size}"[: bundle.stat().st_size]
    for name in ("sh", "bash", "busybox"):
        (tmp_path / name).write_text(text)
    with bundle.open("rb") as file:
        done = start(*in_shell(shell), "-s", "rules", env=surroundings(), cwd=tmp_path, stdin=file)
    assert "standard input" in done.stderr and done.returncode == 2, done
    assert not (tmp_path / "got-in").exists()
