"""Every system call that apply and undo make on the disk fails once, or from then on: what is said is so, and undo puts all back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who owns the files"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]
FAULTS = [
    ("openat", "EROFS"),
    ("openat", "ENOSPC"),
    ("write", "ENOSPC"),
    ("write", "EIO"),
    ("fsync", "EIO"),
    ("rename", "EROFS"),
    ("fchmod", "EPERM"),
    ("fchown", "EPERM"),
    ("mkdir", "ENOSPC"),
    ("unlink", "EROFS"),
    ("rmdir", "EROFS"),
    ("read", "EIO"),
]
NEW = {"one": "10\n", "two": "20\n", "kept.conf": "by hand\none = 10\n", "made/": "", "made/new.conf": "two = 20\n"}


class Runs:
    """Runs in children of one process that does nothing else."""

    def __init__(self) -> None:
        argv = [sys.executable, str(Path(small.__file__))]
        self.server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def told(self, folder: Path, what: str, call: str = "", error: str = "", when: str = "") -> tuple[dict[str, Any], bool]:
        """What the run says became of it, and whether a call failed."""
        log = folder.with_name("strace")
        names = ["one", "two", "kept.conf", ".kept.conf.torchtune-sys", "made", "made/new.conf", "made/.new.conf.torchtune-sys"]
        names += ["state", "state/0001.journal", "state/.0001.journal.torchtune-sys"]
        paths = [word for name in names for word in ("-P", f"{folder}/{name}")]
        strace = [
            "-o",
            str(log),
            *paths,
            "-P",
            str(folder),
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:error={error}:when={when}",
        ]
        asked = {"folder": str(folder), "what": what, "strace": strace if call else []}
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(asked) + "\n")
        self.server.stdin.flush()
        found = json.loads(self.server.stdout.readline())
        assert isinstance(found, dict)
        return found, bool(call) and "(INJECTED)" in log.read_text()


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    made = Runs()
    yield made
    made.server.communicate("", timeout=10)


@pytest.mark.sampled(3, 24)
@pytest.mark.parametrize("lasts", ["once", "for good"])
@pytest.mark.parametrize("what", ["apply", "undo"])
@pytest.mark.parametrize(("call", "error"), FAULTS)
def test_a_call_fails(what: str, call: str, error: str, lasts: str, runs: Runs, tmp_path: Path) -> None:
    for at in range(1, 60):
        folder = tmp_path / str(at) / "host"
        small.set_up(folder)
        if what == "undo":
            small.apply(folder)
            assert small.seen(folder) == NEW
        said, failed = runs.told(folder, what, call, error, f"{at}" if lasts == "once" else f"{at}+")
        if not failed:
            assert at > 1 or (what, call) in (("apply", "unlink"), ("apply", "rmdir"), ("undo", "mkdir"))
            return
        now = small.seen(folder)
        if what == "apply":
            honest(said, now)
        elif not (said.get("kept") or said.get("failed") or said.get("raised")):
            assert now == small.OLD, said
        after, _ = runs.told(folder, "undo")
        assert after == {"failed": {}, "kept": {}}, (at, said, after)
        assert small.seen(folder) == small.OLD, (at, said)
    raise AssertionError("there is no end of it")


def honest(said: dict[str, Any], now: dict[str, str]) -> None:
    if "raised" in said:
        assert now == small.OLD and said["raised"].startswith(("OSError", "PermissionError", "Unready", "NoJournals")), said
    elif said["rolled_back"]:
        assert said["kept"] or now == small.OLD, said
    elif said["failed"]:
        for key in ("one", "two"):
            assert (now[key] == NEW[key]) == (key not in said["failed"]), said
    else:
        assert now == NEW, said
