"""The command that is forked instead of started is the command: same words, same status, same place; and it is forked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import warm
from conftest import HOSTS

REAL = [sys.executable, "-m", "torchtune_sys"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
HOST = str(HOSTS / "swappiness-high.fail.json")


def both(*words: str, **more: Any) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    forked, started = (
        subprocess.run([*program, *words], capture_output=True, text=True, timeout=120, **more)
        for program in (warm.PROGRAM, REAL)
    )
    return forked, started


def ran() -> int:
    """How many runs the server has made."""
    return len(warm.SPENT.read_text().split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "data"),
    [
        (["check", "--from", HOST, "--format", "json"], None),
        (["check", "--from", "-"], "no report"),
        (["plan", "--from", HOST, "--verbose"], None),
        (["check", "--selct", "x"], None),
        (["explain", "swappiness-high"], None),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_it_says_and_ends_as_a_real_start_does(words: list[str], data: str | None, tmp_path: Path) -> None:
    before = ran()
    forked, started = both(*words, input=data, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "70"})
    assert ran() == before + 1
    assert (forked.returncode, forked.stderr) == (started.returncode, started.stderr)
    assert TIME.sub("", forked.stdout) == TIME.sub("", started.stdout)


def test_what_python_reads_at_its_start_is_started(tmp_path: Path) -> None:
    before = ran()
    for change in ({"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"LD_LIBRARY_PATH": str(tmp_path)}):
        forked, started = both("rules", env={**os.environ, **change})
        assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    with (tmp_path / "more").open("w") as more:
        subprocess.run([*warm.PROGRAM, "--version"], pass_fds=[more.fileno()], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["sh", "-c", f"ulimit -n 100; {warm.WORDS} --version"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["sh", "-c", f"{warm.WORDS} --version <&-"], check=True, stdout=subprocess.DEVNULL)
    assert ran() == before


@pytest.mark.skipif(
    os.geteuid() != 0 or bool(subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode),
    reason="needs root that may mount",
)
def test_it_is_where_the_shell_is_that_asks(tmp_path: Path) -> None:
    script = f'mount -t tmpfs none "$1" && cp "$2" "$1/host.json" && cd "$1" && {warm.WORDS} check --format json --from host.json'
    before = ran()
    whole = HOSTS / "healthy.json"
    (tmp_path / "whole.json").write_bytes(
        subprocess.run([*REAL, "record", "--from", whole, "-o", "-"], check=True, capture_output=True).stdout
    )
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", script, "sh", "/mnt", str(tmp_path / "whole.json")],
        capture_output=True,
        text=True,
    )
    assert ran() == before + 1 and not Path("/mnt/host.json").exists()
    assert json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_reaches_it(sent: signal.Signals, status: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    argv = [*warm.PROGRAM, "check", "--timeout", "600", "--from", tmp_path / "never"]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = ran()
    time.sleep(1)
    child.send_signal(sent)
    assert child.wait(60) == status
    until = time.monotonic() + 60
    while ran() == before:  # the run itself ends, too
        assert time.monotonic() < until
        time.sleep(0.01)
