"""What services take, measured: a real busy process of another session, and hostile /proc lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.host.live_queries.load import parse_stat, sample, services, unit_of


def test_a_busy_process_of_another_session_is_counted_and_this_session_is_not(tmp_path: Path) -> None:
    """The stranger loops under a name that no other process has: what else runs on this machine is counted, too."""
    stranger, own = (_loop(tmp_path / name) for name in (f"busy{os.getpid()}", "own"))
    with subprocess.Popen(stranger, start_new_session=True) as busy, subprocess.Popen(own) as ours:
        try:
            with open(f"/proc/{busy.pid}/cgroup") as file:
                unit = unit_of(file.read())
            seen, found = sample(), services("", 30.0)
        finally:
            busy.kill()
            ours.kill()
    assert seen[busy.pid][0] == f"busy{os.getpid()}"
    assert ours.pid not in seen
    assert isinstance(found, dict), found
    cores = {entry["name"]: entry["cores"] for entry in found["units"]}
    if unit:  # else this runs as a job, which is no service
        assert cores[f"busy{os.getpid()} (no unit)" if unit == "/" else unit] > 0.01


def _loop(program: Path) -> list[str]:
    shutil.copy("/bin/sh", program)
    return [str(program), "-c", "while :; do :; done"]


def test_jobs_are_no_services() -> None:
    for path in ("/kubepods.slice/kubepods-pod1.slice/cri-1.scope", "/slurm/uid_1/job_3/step_0", "/system.slice/docker-ab.scope"):
        assert unit_of(f"0::{path}") == ""
    assert unit_of("0::/system.slice/docker.service") == "docker.service"


def test_a_unit_in_a_user_s_slice_is_told_with_whose_it_is() -> None:
    """The user chose its name."""
    own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/sshd.service"
    assert unit_of(own) == "sshd.service of user 1000"
    assert unit_of("0::/system.slice/sshd.service") == "sshd.service"


@given(st.text(max_size=300))
def test_any_line_is_survived(text: str) -> None:
    parse_stat(text)
    parse_stat("1 (x) " + text)
    unit_of(text)
    unit_of("0::" + text)


def test_this_interpreter_is_left_out() -> None:
    with open("/proc/self/stat") as file:
        told = parse_stat(file.read())
    assert told is not None
    assert told[5] > 100, sys.executable
