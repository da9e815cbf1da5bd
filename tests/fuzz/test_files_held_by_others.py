"""What the kernel lets the owner of a file do to who opens or executes it (docs/attacks.md)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchtune_sys.errors import CannotWrite
from torchtune_sys.host import scratch
from torchtune_sys.host.account import Account
from torchtune_sys.host.children import process
from torchtune_sys.model.values import Missing, Why
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


TRACES = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
own, seen = os.getpid(), set()
print("ready", flush=True)
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own and int(name) not in seen:
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read()
            except OSError:
                continue
            if sys.argv[1].encode() in words and os.stat(f"/proc/{name}").st_uid == os.getuid():
                seen.add(int(name))
                libc.ptrace(0x4206, int(name), 0, 0)  # PTRACE_SEIZE
                if sys.argv[2] == "interrupt":
                    libc.ptrace(0x4207, int(name), 0, 0)  # PTRACE_INTERRUPT: it stops, and nobody has it go on
    time.sleep(0.01)
"""
"""Traces each process of the environment's as it comes, and waits for none: what is traced stays a zombie, and cannot be awaited."""


@pytest.fixture(params=["seize", "interrupt"])
def traced_python(scene: Scene, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An environment whose Python never answers, and each process of which another one of alice's traces."""
    python = scene.alice.venv() / "bin" / "python3"
    scene.alice.write(scene.alice.packages(python.parent.parent) / "slow.pth", "import time; time.sleep(600)\n")
    words = [SYSTEM_PYTHON, "-c", TRACES, str(python), request.param]
    with subprocess.Popen(words, user=scene.alice.uid, group=scene.alice.gid, extra_groups=[], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None and tracer.stdout.readline() == b"ready\n"
        yield python
        tracer.kill()


def test_what_its_owner_traces_is_not_awaited(scene: Scene, traced_python: Path) -> None:
    """Killed, it is a zombie that its tracer alone can reap: each wait for it lasted as long as waits may, 1.5 s, and half a second in vain for what it left."""
    alice = Account(
        name=scene.alice.name, uid=scene.alice.uid, gid=scene.alice.gid, groups=(), home=str(scene.alice.home), login_shell=""
    )
    started = time.monotonic()
    found = process.run((str(traced_python), "-c", "pass"), timeout_s=4, user=alice)
    assert isinstance(found, Missing) and found.why is Why.TIMEOUT
    assert time.monotonic() - started < 4 + 1.5


STOPS = """
import os, signal, sys
print("ready", flush=True)
newest = os.getpid()
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) > newest:
            try:
                with open(f"/proc/{name}/comm") as file:
                    if file.read().strip() == sys.argv[1]:
                        os.kill(int(name), signal.SIGSTOP)
                        print("stopped", flush=True)
                        newest = int(name)
            except OSError:
                continue
"""
"""Stops what bears a name and is its user's; what is root's the kernel refuses."""


@pytest.mark.parametrize("program", ["mkdir", "rm"])
def test_who_stops_what_makes_or_removes_her_scratch_folder_holds_nobody(scene: Scene, program: str) -> None:
    """Both run as the ranks' user; they were waited for 60 s, whatever limit the command had, and mkdir in each of three places."""
    alice = Account(
        name=scene.alice.name, uid=scene.alice.uid, gid=scene.alice.gid, groups=(), home=str(scene.alice.home), login_shell=""
    )
    words = [
        "setpriv",
        f"--reuid={scene.alice.uid}",
        f"--regid={scene.alice.gid}",
        "--clear-groups",
        SYSTEM_PYTHON,
        "-c",
        STOPS,
        program,
    ]
    not_our_child = ["sh", "-c", '"$@"; true', "sh", *words]  # what is of hers and ours is ended with what was started as her
    with subprocess.Popen(not_our_child, stdout=subprocess.PIPE, start_new_session=True) as stopper:
        assert stopper.stdout is not None and stopper.stdout.readline() == b"ready\n"
        taken_s = 0.0
        for _ in range(40):  # she may come too late
            if taken_s < 1.0:
                started = time.monotonic()
                with contextlib.suppress(CannotWrite), scratch.directory("", alice, 2.0):
                    pass
                taken_s = time.monotonic() - started
        os.killpg(stopper.pid, signal.SIGKILL)
        assert b"stopped" in stopper.stdout.read()
    assert taken_s < 2 + 4
