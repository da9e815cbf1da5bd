"""What the kernel lets the owner of a file do to who opens or executes it (docs/security.md, "Twenty-second look")."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from two_users import SYSTEM_PYTHON, Scene, as_root, needs_root

pytestmark = needs_root
HOLDS = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)  # told to give the lease back, she does not
held = os.open(sys.argv[1], os.O_RDONLY)
while True:
    if fcntl.fcntl(held, fcntl.F_GETLEASE) == fcntl.F_UNLCK:
        try:
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            pass
        else:
            print("held", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def leased_python(scene: Scene) -> Iterator[Path]:
    """An environment whose interpreter is alice's file, on which she holds a lease: each open waits 45 s (/proc/sys/fs/lease-break-time)."""
    python = scene.alice.venv() / "bin" / "python3"
    python.unlink()
    shutil.copy(os.path.realpath(SYSTEM_PYTHON), python)
    os.chown(python, scene.alice.uid, scene.alice.gid)
    words = [SYSTEM_PYTHON, "-c", HOLDS, str(python)]
    with subprocess.Popen(words, user=scene.alice.uid, group=scene.alice.gid, extra_groups=[], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        yield python
        holder.kill()


def of_user(uid: int, word: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == uid and word.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("command", ["check -q --timeout 20", "smoke --quick --device cpu --timeout 20"])
def test_a_lease_on_the_python_holds_neither_the_command_nor_its_other_children(
    scene: Scene, leased_python: Path, command: str
) -> None:
    """Whoever started something else waited for that start, too: what needs a child was unknown. What waited outlived the command, and then ran."""
    started = time.monotonic()
    done = as_root(*command.split(), "--python", str(leased_python))
    said = " ".join((done.stdout + done.stderr).split())
    assert time.monotonic() - started < 40 and "not executed" in said, done
    assert of_user(scene.alice.uid, "torchtune_sys") == []
