"""Files that we write: whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtune_sys.errors import CannotWrite
from torchtune_sys.host.files import write_atomically, write_below


def test_a_new_file_and_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_atomically(str(path), "one\n")
    assert path.read_text() == "one\n"
    path.chmod(0o600)
    write_atomically(str(path), "two\n")
    assert path.read_text() == "two\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["out.json"]


def test_the_umask_is_obeyed(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(str(tmp_path / "x"), "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("x", "y")
    assert Path("x").read_text() == "y"


def test_devices_are_written_to() -> None:
    write_atomically("/dev/null", "x" * 100)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, todo in (
        (tmp_path, "name a file in it"),
        (tmp_path / "none" / "x", "make its directory"),
        (tmp_path / "file" / "x", "somewhere else"),
        (tmp_path / ("x" * 300), "somewhere else"),
    ):
        with pytest.raises(CannotWrite) as caught:
            write_atomically(str(path), "text")
        assert todo in caught.value.todo and ("room" in caught.value.todo) == (len(path.name) == 300)
    with pytest.raises(CannotWrite) as caught:
        write_atomically("/dev/full", "text")
    assert "make room" in caught.value.todo
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """The limit on file sizes stands for the disk: write(2) fails in the middle of the text."""
    (tmp_path / "x").write_text("old")
    code = (
        "import resource, signal, sys; from torchtune_sys.host.files import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_atomically(sys.argv[1], 'x' * 5000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, timeout=30, check=False
    )
    assert "FileTooLarge" in done.stderr and "File too large" in done.stderr
    assert os.listdir(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "old"


@pytest.mark.parametrize("whole_group", [False, True], ids=["kill", "Ctrl-C"])
def test_an_interrupt_leaves_no_draft(whole_group: bool, tmp_path: Path) -> None:
    slow = "import os, time; os.fsync = lambda handle: time.sleep(60)\n"
    code = slow + "import sys; from torchtune_sys.host.files import write_in_child; write_in_child(sys.argv[1], 'text')"
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "report"], stderr=subprocess.DEVNULL, start_new_session=True)
    until_s = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert [path.name[:8] for path in tmp_path.iterdir()] == [".report."]
    (os.killpg if whole_group else os.kill)(child.pid, signal.SIGINT)
    assert child.wait(timeout=60) != 0 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["file", "file/below", "/dev/full"])
def test_files_go_into_a_folder_only(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CannotWrite, match="is no directory"):
        write_below(str(tmp_path / folder), {"Dockerfile": "x"}, "mark")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path) -> None:
    code = "import sys; from torchtune_sys.host.files import write_atomically; write_atomically(sys.argv[1], 'x' * 5000)"
    argv = ["prlimit", "--fsize=1000", sys.executable, "-c", code, str(tmp_path / "new")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "File too large" in done.stderr and "ulimit -f" in done.stderr
    assert list(tmp_path.iterdir()) == []
