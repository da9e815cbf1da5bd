"""Recordings and text that people give to --from, and what is neither (trees and archives: test_open_trees.py)."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from opened import host, put, refusal, tree_tar, why

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host
from torchtune_sys.host.input import reading
from torchtune_sys.host.input.limits import EXTENDED_LIMIT
from torchtune_sys.host.input.opening import PastedText, open_host, open_input
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.scrubbed import ScrubbedHost
from torchtune_sys.model.values import Why

# --- recordings, text, and what is neither


def test_recordings(tmp_path: Path) -> None:
    recording = {"schema": "torchtune-sys/recording/1", "files": {"/proc/x": "1"}}
    assert host(put(tmp_path / "r.json", json.dumps(recording).encode())).text("/proc/x") == "1"
    packed = host(put(tmp_path / "r.json.gz", gzip.compress(json.dumps(recording).encode())))
    assert isinstance(packed, ScrubbedHost) and isinstance(packed.inner, RecordedHost)
    put(tmp_path / "over.json", b'{"extends": "r.json", "files": {"/proc/y": "2"}}')
    both = host(tmp_path / "over.json")
    assert (both.text("/proc/x"), both.text("/proc/y")) == ("1", "2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"files": {"/x": "1"},\n "links": {"/y" "z"}}', "line 2, column"),
        ('{"files": {"/x": ', "not valid JSON"),
        ("[1, 2]", "a recording is a JSON object"),
        ("{}", "not a recording"),
        ('{"facts": {}}', "not a recording"),
        ('{"schema": "torchtune-sys/report/1", "results": []}', "is a report"),
        ('{"schema": "torchtune-sys/snapshot/1", "facts": {}}', "is a snapshot"),
        ('{"schema": "torchtune-sys/recording/9"}', "has the schema torchtune-sys/recording/9"),
        ('{"extends": "self.json"}', "in a circle: self.json -> self.json"),
        ('{"extends": "none.json"}', "none.json: No such file"),
        ('{"extends": 5}', '"extends" names no files'),
        ('{"files": ["/x"]}', "files: Expected"),
        ('{"files": {"/x": 5}}', "files: Expected"),
        ('{"links": {"/x": ["y"]}}', "links: Expected"),
        ("[" * 100_000, "not valid JSON"),
        ("", "is empty"),
        (" \n", "is empty"),
    ],
)
def test_recordings_that_are_none(tmp_path: Path, content: str, words: str) -> None:
    assert words in refusal(put(tmp_path / "self.json", content.encode()))


def test_a_longer_circle_is_named(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        put(tmp_path / f"{name}.json", json.dumps({"extends": f"{other}.json"}).encode())
    assert "a.json -> b.json -> c.json -> a.json" in refusal(tmp_path / "a.json")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with a file outside of what a recording in its sub-folder may read."""
    put(tmp_path / "secret.json", b'{"files": {"/proc/x": "secret"}}')
    (tmp_path / "here" / "sub").mkdir(parents=True)
    put(tmp_path / "here" / "sub" / "below.json", b'{"files": {"/proc/x": "secret"}}')
    (tmp_path / "here" / "link.json").symlink_to("../secret.json")
    (tmp_path / "here" / "near.json").symlink_to("good.json")
    (tmp_path / "here" / "folder").symlink_to("..")
    put(tmp_path / "here" / "good.json", b'{"files": {"/proc/x": "good"}}')
    os.mkfifo(tmp_path / "here" / "fifo")
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("../secret.json", "only files in the same directory"),
        ("sub/below.json", "only files in the same directory"),
        ("folder/secret.json", "only files in the same directory"),
        ("./good.json", "only files in the same directory"),
        ("/proc/kmsg", "only files in the same directory"),
        ("{here}/good.json", "only files in the same directory"),
        ("..", "only files in the same directory"),
        ("good.json\0", "only files in the same directory"),
        ("link.json", "is a symbolic link"),
        ("near.json", "is a symbolic link"),
        ("fifo", "is not a regular file"),
        ("sub", "is not a regular file"),
        ("none.json", "No such file"),
    ],
)
def test_a_recording_extends_regular_files_beside_it_only(beside: Path, named: str, words: str) -> None:
    content = json.dumps({"extends": ["good.json", named.replace("{here}", str(beside))]})
    started = time.monotonic()
    assert words in refusal(put(beside / "r.json", content.encode()))
    assert time.monotonic() - started < 10, "nothing was waited for"


def test_a_given_link_is_followed_and_what_lies_beside_the_link_is_extended(beside: Path) -> None:
    put(beside / "sub" / "r.json", b'{"extends": "good.json"}')
    (beside / "given.json").symlink_to("sub/r.json")
    assert host(beside / "given.json").text("/proc/x") == "good"


def test_standard_input_extends_nothing(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(beside)
    handle, kept = os.memfd_create("recording"), os.dup(0)
    try:
        os.write(handle, b'{"extends": "good.json"}')
        os.lseek(handle, 0, os.SEEK_SET)
        os.dup2(handle, 0)
        assert "may extend no file" in refusal("-")
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(handle)


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a chain that names the next one twice would double what is read: 2 to the power of its length."""
    read: list[str] = []

    really = reading.opened_input

    def counted(path: str, timeout_s: float = 1.0, *, plain: bool = False) -> contextlib.AbstractContextManager[reading.Source]:
        read.append(Path(path).name)
        return really(path, timeout_s, plain=plain)

    monkeypatch.setattr(reading, "opened_input", counted)
    last = EXTENDED_LIMIT - 1
    for number in range(last):
        content = {"extends": [f"{number + 1}.json"] * 2, "files": {"/proc/x": str(number)}}
        put(tmp_path / f"{number}.json", json.dumps(content).encode())
    put(tmp_path / f"{last}.json", b'{"files": {"/proc/x": "last", "/proc/y": "last"}}')
    both = host(tmp_path / "0.json")
    assert (both.text("/proc/x"), both.text("/proc/y")) == ("0", "last") and len(read) == len(set(read)) == EXTENDED_LIMIT
    put(tmp_path / f"{last}.json", b'{"extends": "more.json"}')
    put(tmp_path / "more.json", b'{"files": {"/proc/x": "more"}}')
    assert f"more than {EXTENDED_LIMIT} files" in refusal(tmp_path / "0.json")


def test_strange_entries_are_unparsed(tmp_path: Path) -> None:
    content = {
        "stats": {"/x": {"mode": "y"}},
        "spaces": {"/x": {}},
        "commands": {"ls": {"rc": "x"}},
        "files": {"/z": {"odd": 1}},
        "answers": {"nvml": {"error": "UNINITIALIZED", "devices": []}},
    }
    seen = host(put(tmp_path / "r.json", json.dumps(content).encode()))
    assert {why(seen.stat("/x")), why(seen.space("/x")), why(seen.run(("ls",))), why(seen.text("/z"))} == {Why.UNPARSED}
    assert seen.ask("nvml") == {"error": "UNINITIALIZED", "devices": []}  # an answer with an "error" of its own


def test_pasted_text(tmp_path: Path) -> None:
    words = "Collecting environment information...\nPyTorch version: 2.11.0\n"
    for data in (words.encode(), words.encode("utf-8-sig"), words.encode("utf-16"), gzip.compress(words.encode())):
        found = open_input(str(put(tmp_path / "x.txt", data)))
        assert isinstance(found, PastedText) and found.text == words
    with pytest.raises(UnreadableInput):
        open_host(str(tmp_path / "x.txt"))


def test_a_recording_that_powershell_wrote(tmp_path: Path) -> None:
    content = json.dumps({"files": {"/proc/version": "Linux version 6.8"}})
    (tmp_path / "host.json").write_bytes(content.encode("utf-16"))
    found = open_input(str(tmp_path / "host.json"))
    assert isinstance(found, Host) and found.text("/proc/version") == "Linux version 6.8"


def test_an_empty_name_is_told() -> None:
    for names in ({"from_": ""}, {"root": ""}):
        with pytest.raises(UnreadableInput, match="is empty"):
            open_input(**names)


@pytest.mark.parametrize(
    "line", ["[2026-07-09 00:57:25] host NCCL WARN no path", "[pip3] torch==2.11.0", "[    4.1] NVRM: loading", "[0] x"]
)
def test_a_log_may_begin_with_a_bracket(tmp_path: Path, line: str) -> None:
    assert isinstance(open_input(str(put(tmp_path / "x.txt", line.encode()))), PastedText)


def test_a_log_may_hold_zeros(tmp_path: Path) -> None:
    found = open_input(
        str(put(tmp_path / "x.txt", bytes(70_000) + b"ERROR: Unexpected bus error encountered in worker.\n\0step 5\n"))
    )
    assert isinstance(found, PastedText) and found.text == "ERROR: Unexpected bus error encountered in worker.\nstep 5\n"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes(range(256)) * 20, "neither text nor"),
        (b"\x7fELF" + b"\0" * 100, "is a program"),
        (b"PK\x03\x04" + b"\0" * 100, "zip archive"),
        (b"\x28\xb5\x2f\xfd" + b"\0" * 100, "zstd"),
        (b"\x89PNG\r\n" + b"\0" * 100, "picture"),
        (b"070701" + b"0" * 104 + b"TRAILER!!!\0", "cpio"),
        (b"\x04\x22\x4d\x18" + b"\0" * 100, "lz4"),
    ],
)
def test_binary_garbage(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(put(tmp_path / "x", data))


def test_damaged_zstd_is_told_as_other_damages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error, where Python or a package reads zstd: their error is none of Python's other ones."""

    class ZstdError(Exception):
        pass

    class ZstdFile:
        def __init__(self, packed: object) -> None:
            pass

        def read(self, size: int) -> bytes:
            raise ZstdError("Restored data doesn't match checksum")

    reader = types.ModuleType("backports.zstd")
    reader.__dict__.update(ZstdError=ZstdError, ZstdFile=ZstdFile)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", reader)
    assert "the zstd data are damaged or cut off: Restored" in refusal(put(tmp_path / "x", b"\x28\xb5\x2f\xfd" + b"\0" * 100))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none")
    assert "is a device" in refusal("/dev/zero")
    started = time.monotonic()
    os.mkfifo(tmp_path / "fifo")
    assert "delivered nothing for 0.3 s" in refusal(tmp_path / "fifo", timeout_s=0.3)
    assert time.monotonic() - started < 30


def test_a_fifo_that_delivers_late(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    def deliver() -> None:
        with (tmp_path / "fifo").open("wb") as file:
            for part in (b"Collecting ", b"environment "):
                time.sleep(0.1)
                file.write(part)
                file.flush()

    writer = threading.Thread(target=deliver)
    writer.start()
    found = open_input(str(tmp_path / "fifo"))
    writer.join()
    assert isinstance(found, PastedText) and found.text == "Collecting environment "


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_no_permission() -> None:
    code = (
        "import os, select; from torchtune_sys.host.input.opening import open_input; from torchtune_sys.host import input; os.setuid(65534)\n"
        "try: open_input('/proc/1/environ')\nexcept Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert "Permission denied" in done.stdout and "run as" in done.stdout


def test_standard_input() -> None:
    code = "from torchtune_sys.host.input.opening import open_input; found = open_input('-'); print(type(getattr(found, 'inner', found)).__name__)"
    for data, kind in (
        (b"PyTorch version: 2.11.0\n", "PastedText"),
        (tree_tar(), "TreeHost"),
        (b'{"files": {}}', "RecordedHost"),
    ):
        done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=30, check=False)
        assert done.stdout.decode().strip() == kind, done.stderr


def test_live_without_arguments() -> None:
    found = open_input()
    assert isinstance(found, ScrubbedHost) and isinstance(found.inner, LiveHost) and found.live


def test_a_snapshot_as_text_is_no_kernel_log(tmp_path: Path) -> None:
    """It may hold a line of the log, of which alone it was judged."""
    (tmp_path / "a.txt").write_text("origin live\nintent\n  ranks -\nkernel\n  text Out of memory: Killed process 7 (python3)\n")
    with pytest.raises(UnreadableInput, match="is a snapshot as text"):
        open_input(str(tmp_path / "a.txt"))
