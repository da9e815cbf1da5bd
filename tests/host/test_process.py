"""Children that hang, stop, multiply, print for ever or cannot start, each for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtune_sys.host import processes
from torchtune_sys.host.base import Output
from torchtune_sys.host.children import process
from torchtune_sys.model.values import Missing, Why


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pid: int, within_s: float = 20.0) -> bool:
    limit = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.01)
    return not alive(pid)


def sh(script: str, timeout_s: float = 10.0, **more: str) -> Output | Missing:
    return process.run(("sh", "-c", script), timeout_s=timeout_s, **more)  # type: ignore[arg-type]


def why(found: object) -> Why:
    assert isinstance(found, Missing), found
    return found.why


def test_output_status_and_input() -> None:
    assert sh("cat; echo oops >&2; exit 3", data="hello") == Output(rc=3, stdout="hello", stderr="oops\n")
    assert sh("wc -c", data="x" * 300_000) == Output(rc=0, stdout="300000\n")
    assert sh("kill -SEGV $$") == Output(rc=-11, stdout="")
    assert sh("printf '\\377'") == Output(rc=0, stdout="\ufffd")


def test_much_output_arrives_whole() -> None:
    found = sh("head -c 5000000 /dev/zero | tr '\\0' x")
    assert isinstance(found, Output) and len(found.stdout) == 5_000_000


@pytest.mark.parametrize(
    "script",
    [
        "sleep 60",
        "trap '' TERM; while :; do sleep 0.1; done",
        "kill -STOP $$",
        "exec >&- 2>&-; sleep 60",
        "(trap '' TERM HUP; sleep 60) & wait",
    ],
    ids=["sleeping", "ignoring-sigterm", "stopped", "silent", "grandchild-ignoring-sigterm"],
)
def test_child_is_gone_after_its_deadline(script: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    started = time.monotonic()
    assert why(sh(f"echo $$ > {note}; {script}", timeout_s=3.0)) is Why.TIMEOUT
    assert time.monotonic() - started < 30
    assert gone(int(note.read_text()))


def test_grandchild_that_keeps_the_pipe_does_not_hold_us(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    started = time.monotonic()
    assert sh(f"sleep 60 & echo $! > {note}; echo done", timeout_s=40) == Output(rc=0, stdout="done\n")
    assert time.monotonic() - started < 30
    assert gone(int(note.read_text()))


def test_grandchild_dies_with_a_child_that_obeys(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert (
        why(sh(f"sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & echo $! > {note}; sleep 60", timeout_s=3.0)) is Why.TIMEOUT
    )
    assert gone(int(note.read_text()))


def test_endless_output_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTPUT_LIMIT", 1 << 20)
    started = time.monotonic()
    found = sh("yes")
    assert why(found) is Why.FAILED and "printed more than 1 MiB" in str(found)
    assert time.monotonic() - started < 30


def test_what_cannot_start_is_an_answer(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("not a program")
    assert why(process.run((str(tmp_path / "none"),), timeout_s=30)) is Why.NO_TOOL
    script.chmod(0o644)
    assert why(process.run((str(script),), timeout_s=30)) is Why.DENIED
    script.chmod(0o755)
    assert why(process.run((str(script),), timeout_s=30)) is Why.FAILED  # ENOEXEC
    assert why(process.run(("true", "x" * (4 << 20)), timeout_s=30)) is Why.FAILED  # E2BIG
    assert why(process.run(("true", "a\0b"), timeout_s=30)) is Why.FAILED
    gone_folder = process.run(("true",), timeout_s=1, cwd=str(tmp_path / "gone"))
    assert why(gone_folder) is Why.FAILED and "is gone" in str(gone_folder)


def test_what_this_user_cannot_reach_is_not_called_not_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the Python that an environment in another user's home leads to."""
    script = tmp_path / "python3"
    script.write_text("")

    def refused(path: str, seen: object = None) -> None:
        raise PermissionError(13, "Permission denied", "/root/.pyenv")

    monkeypatch.setattr("torchtune_sys.host.trust.steps", refused)
    said = process.run((str(script),), timeout_s=30)
    assert str(said).endswith(f"{script} is out of reach: it leads into /root, which this user may not enter"), said


def test_no_room_on_tmp_is_no_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "full"))
    assert sh("cat", data="hello") == Output(rc=0, stdout="hello")


def _in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_process_limit_is_an_answer() -> None:
    """In an own process as a user without privilege, since root is not bound by RLIMIT_NPROC."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    code = (
        "import os, resource; from torchtune_sys.host.children import process; process.run(('true',), timeout_s=30)\n"
        "os.setgid(65534); os.setuid(65534); resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n"
        "print(process.run(('true',), timeout_s=30))"
    )
    assert "limit on processes" in _in_fresh_python(code)


def test_file_limit_is_an_answer() -> None:
    code = (
        "import resource; from torchtune_sys.host.children import process; process.run(('true',), timeout_s=30)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); print(process.run(('true',), timeout_s=30))"
    )
    assert "Too many open files" in _in_fresh_python(code)


def test_interrupt_ends_the_child(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        f"from torchtune_sys.host.children import process; process.run(('sh', '-c', 'echo $$ > {note}; sleep 60'), timeout_s=60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < limit:
        time.sleep(0.02)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(timeout=60) != 0
    assert gone(int(note.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_comes_between_a_child_s_fork_and_the_note_of_it_ends_it_too(number: int, tmp_path: Path) -> None:
    """A parent that is slow to return from ``Popen``, as on a busy host: the child has been executed, and its parent does not have it yet."""
    code = f"""
import os, signal, subprocess, sys, time
from torchtune_sys.host.children import process
usual = subprocess.Popen.__init__
def slow(self, *words, **more):
    usual(self, *words, **more)
    os.kill(os.getpid(), {int(number)})
    time.sleep(0.5)
subprocess.Popen.__init__ = slow
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
process.run(("sh", "-c", "echo $$ > {tmp_path}/pid; sleep 300"), timeout_s=60)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, stderr=subprocess.PIPE, text=True)
    assert done.returncode == (3 if number == signal.SIGTERM else -signal.SIGINT), done.stderr
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_child_that_starts_while_all_are_ended_is_ended_too(tmp_path: Path) -> None:
    """Twelve threads start children one after the other; at whatever moment the program leaves, none survives it."""
    code = f"""
import os, threading, time
from torchtune_sys.host.children import process
from torchtune_sys.cli.terminal import leave
def work():
    while True:
        process.run(("/bin/sh", "-c", "echo $$ >>{tmp_path}/pids; exec sleep 300"), timeout_s=0.1)
for _ in range(12):
    threading.Thread(target=work, daemon=True).start()
while not os.path.exists("{tmp_path}/pids"):
    time.sleep(0.05)
time.sleep(0.25)
leave(0)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert pids and all(map(gone, pids))


def test_a_container_without_dev_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "devnull", "/nowhere/null")
    found = process.run(("/bin/cat",), timeout_s=30)
    assert isinstance(found, Output) and (found.rc, found.stdout) == (0, "")


def test_a_null_device_that_is_there_and_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a file system that is mounted nodev: a child was not started at all."""
    monkeypatch.setattr(os, "devnull", str(tmp_path))
    found = process.run(("/bin/cat",), timeout_s=30)
    assert isinstance(found, Output) and (found.rc, found.stdout) == (0, "")


def test_input_where_a_filter_refuses_memfd_create(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_asked: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    found = process.run(("/bin/cat",), timeout_s=30, data="words")
    assert isinstance(found, Output) and (found.rc, found.stdout) == (0, "words")


def test_end_all_ends_what_threads_wait_for(tmp_path: Path) -> None:
    found: list[object] = []
    scripts = [
        f"echo $$ > {tmp_path / name}; {rest}"
        for name, rest in (("a", "sleep 60"), ("b", "trap '' TERM; while :; do sleep 0.1; done"))
    ]
    threads = [threading.Thread(target=lambda script=script: found.append(sh(script, timeout_s=60))) for script in scripts]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + 60
    while (
        len([1 for name in "ab" if (tmp_path / name).exists() and (tmp_path / name).read_text()]) < 2 and time.monotonic() < limit
    ):
        time.sleep(0.02)
    started = time.monotonic()
    process.end_all()
    assert time.monotonic() - started < 30
    for thread in threads:
        thread.join(timeout=60)
    assert len(found) == 2 and all(gone(int((tmp_path / name).read_text())) for name in "ab")


def test_a_child_that_cannot_be_killed_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    monkeypatch.setattr(process, "_signal", lambda *_: None)  # as in state D: no signal has an effect
    started = time.monotonic()
    assert "abandoned" in process.end(child)
    assert time.monotonic() - started < 30
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


def test_no_descriptor_is_left_open() -> None:
    sh("true")
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        sh("echo x")
        sh("sleep 5", timeout_s=0.01)
        process.run(("/nonexistent",), timeout_s=30)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_children_inherit_no_descriptor() -> None:
    handle = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(handle, True)
    found = sh("ls /proc/self/fd | wc -l")
    os.close(handle)
    assert isinstance(found, Output) and int(found.stdout) <= 4


@pytest.mark.parametrize(
    ("doing", "is_held"),
    [(lambda: [None for _ in iter(int, 1)], False), (signal.pause, True), (lambda: os.kill(os.getpid(), signal.SIGSTOP), True)],
)
def test_only_a_start_that_sleeps_is_held_up(doing: Callable[[], object], is_held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that waits for a CPU before it is executed, on a host at a load of 100, was taken for one on whose file its owner holds a lease."""
    others = {os.getpid(), *processes.children(os.getpid())}
    monkeypatch.setattr(process, "_pids", lambda: others)
    monkeypatch.setattr(process, "_ASLEEP_S", 0.3)
    child = os.fork()
    if child == 0:
        os.nice(19)
        doing()
        os._exit(0)
    try:
        asked, looks = process._held_up(os.getuid()), []
        for _ in range(4):
            time.sleep(0.2)
            looks.append(asked())
        assert looks[-1] == is_held
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
