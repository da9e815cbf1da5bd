"""A site's own programs: what they find is a finding, what they do wrong is not the node's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtune_sys.model.preflight import Blame, Cause, Weight
from torchtune_sys.preflight import site_checks
from torchtune_sys.preflight.policy import Policy, SitePolicy

PLAIN = {"PATH": "/usr/bin:/bin"}


def program(folder: Path, name: str, text: str, mode: int = 0o755) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(mode)


def found(folder: Path, policy: Policy | None = None, seconds: float = 30) -> dict[str, Cause]:
    causes = site_checks.run(str(folder), policy or Policy(), PLAIN, time.monotonic() + seconds)
    return {cause.rule: cause for cause in causes}


def test_interrupted_nobody_waits_for_a_program_that_hangs(tmp_path: Path) -> None:
    program(tmp_path, "hangs", f"touch {tmp_path}/begun; sleep 60")
    argv = [sys.executable, "-m", "torchtune_sys", "preflight", "--site-checks", str(tmp_path)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_s = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=30)[1].strip() == "torchtune-sys: interrupted" and child.returncode == 130


@pytest.mark.parametrize(
    ("text", "weight", "seen"),
    [
        ("echo CRITICAL - /scratch is gone; exit 2", Weight.FATAL, "CRITICAL - /scratch is gone"),
        ("echo 'WARNING - slow | t=3s'; exit 1", Weight.WARNING, "WARNING - slow"),
        ("echo cannot say; exit 3", Weight.UNKNOWN, "cannot say"),
        ("""echo '{"verdict": "fail", "cause": "hung-mount", "blame": "network", "seen": "lustre"}'""", Weight.FATAL, "lustre"),
        ("exit 127", Weight.UNKNOWN, "exit status 127"),
        ("kill -SEGV $$", Weight.UNKNOWN, "ended by SIGSEGV"),
        ("""echo '{"verdict": "pass"}'; kill -SEGV $$""", Weight.UNKNOWN, "ended by SIGSEGV"),
        ("echo '{\"verdict\": '", Weight.UNKNOWN, "no valid JSON"),
        ("""echo '{"verdict": "bad"}'""", Weight.UNKNOWN, "no verdict"),
        ("""echo '{"verdict": ["fail"], "blame": []}'""", Weight.UNKNOWN, "no verdict"),
        ("""echo '{"verdict": {"fail": 1}}'""", Weight.UNKNOWN, "no verdict"),
    ],
)
def test_what_a_program_says(tmp_path: Path, text: str, weight: Weight, seen: str) -> None:
    program(tmp_path / "checks", "one", text)
    cause = found(tmp_path / "checks")["site:one"]
    assert cause.weight is weight
    assert seen in cause.seen
    assert (cause.blame is Blame.CHECKER) == (weight is Weight.UNKNOWN)


def test_a_folder_named_from_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "checks", "one", "pwd; exit 2")
    monkeypatch.chdir(tmp_path)
    assert found(Path("checks"))["site:one"].seen == "/"


def test_a_program_whose_interpreter_is_not_there_is_not_called_missing(tmp_path: Path) -> None:
    program(tmp_path, "one", "")
    (tmp_path / "one").write_text("#!/opt/site/bin/python9\n")
    cause = found(tmp_path)["site:one"]
    assert cause.weight is Weight.UNKNOWN
    assert "the interpreter or loader that it names is not there" in cause.seen


def test_a_program_that_is_content_says_nothing(tmp_path: Path) -> None:
    program(tmp_path / "checks", "one", "echo OK; exit 0")
    program(tmp_path / "checks", "README", "exit 2", 0o644)
    program(tmp_path / "checks", ".hidden", "exit 2")
    assert found(tmp_path / "checks") == {}


def test_a_program_that_hangs_is_ended_and_named(tmp_path: Path) -> None:
    program(tmp_path / "checks", "hung.sh", "sleep 600")
    program(tmp_path / "checks", "bad", "echo broken; exit 2")
    begun = time.monotonic()
    causes = found(tmp_path / "checks", Policy(sites={"hung": SitePolicy(timeout_s=0.5)}))
    assert time.monotonic() - begun < 60
    assert causes["site:hung.sh"].weight is Weight.UNKNOWN
    assert "no answer within 0.5 s" in causes["site:hung.sh"].seen
    assert causes["site:bad"].weight is Weight.FATAL


def test_the_policy_lowers_what_a_program_calls_critical(tmp_path: Path) -> None:
    program(tmp_path / "checks", "lustre.sh", "exit 2")
    policy = Policy(sites={"lustre": SitePolicy(severity=Weight.WARNING)})
    assert found(tmp_path / "checks", policy)["site:lustre.sh"].weight is Weight.WARNING


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone refuses what others may write")
def test_root_runs_nothing_that_others_may_write(tmp_path: Path) -> None:
    program(tmp_path / "checks", "theirs", f"touch {tmp_path}/ran; exit 2", 0o777)
    (tmp_path / "checks/theirs").chmod(0o777)
    cause = found(tmp_path / "checks")["site:theirs"]
    assert cause.weight is Weight.UNKNOWN
    assert "others may write" in cause.seen
    assert not (tmp_path / "ran").exists()
