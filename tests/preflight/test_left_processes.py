"""Which processes belong to no running job, on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import judge, load
from torchtune_sys.host.children.left_processes import at_work, left_processes
from torchtune_sys.model.rule import Verdict
from torchtune_sys.preflight import host_only

HERE = Path(__file__).parent
JOB = os.getpid()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes of another user")
def test_a_process_that_came_by_ssh_belongs_to_the_job_of_its_control_group(tmp_path: Path) -> None:
    """It has no SLURM_JOB_ID: pam_slurm_adopt moved it into the job's control group. When the job is gone, it was left behind."""
    above = Path("/sys/fs/cgroup")
    group = (above / "pids" if (above / "pids").is_dir() else above) / f"torchtune-sys-test-{JOB}"
    step = group / f"job_{JOB}"
    try:
        step.mkdir(parents=True)
    except OSError as why:
        pytest.skip(f"control groups: {why}")
    shutil.copy(str(shutil.which("sleep")), tmp_path / "slurmstepd")
    daemon = subprocess.Popen([f"slurmstepd: [{JOB}.extern]", "60"], executable=tmp_path / "slurmstepd")
    pid = 0
    try:
        env = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
        subprocess.run([sys.executable, HERE / "left_behind.py", "1", tmp_path / "pid"], check=True, env=env, timeout=60)
        pid = int((tmp_path / "pid").read_text())
        assert pid in {one.pid for one in left_processes()}
        (step / "cgroup.procs").write_text(str(pid))
        assert pid not in {one.pid for one in left_processes()}
        assert at_work([pid, os.getpid()]) == {pid}
        daemon.kill()
        daemon.wait()
        assert pid in {one.pid for one in left_processes()}
        assert not at_work([pid])
    finally:
        daemon.kill()
        daemon.wait()
        if pid:
            os.kill(pid, 9)
        for _ in range(200):
            if not (step / "cgroup.procs").read_text():
                break
            time.sleep(0.05)
        step.rmdir()
        group.rmdir()


def test_memory_of_gpus_that_a_job_at_work_holds_is_no_leftover() -> None:
    seen = host_only.host_only(load("gpu-memory-in-use.fail"))
    pids = host_only.on_gpus(seen)
    assert pids
    assert judge(seen)["gpu-memory-in-use"].verdict is Verdict.FAIL
    assert judge(host_only.without(seen, frozenset(pids)))["gpu-memory-in-use"].verdict is not Verdict.FAIL
    assert judge(host_only.without(seen, frozenset([1])))["gpu-memory-in-use"].verdict is Verdict.FAIL
