"""The hooks for Slurm as they are written, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from preflight.slurm_node import TOOL, generated


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: nobody else's folder is trusted")
def test_slurm_in_a_place_of_its_own_is_found_by_the_hooks(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/opt") as folder:
        os.chmod(folder, 0o755)
        scontrol = Path(folder) / "scontrol"
        scontrol.write_text("#!/bin/sh\necho 'Prolog = /x'\n")
        scontrol.chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run([TOOL, "generate", "slurm", "prolog"], env=env, capture_output=True, text=True, timeout=60)
        assert f"export PATH={folder}:/usr/local/sbin" in done.stdout
        done = subprocess.run([TOOL, "generate", "slurm", "conf"], env=env, capture_output=True, text=True, timeout=60)
        assert "now /x: set Prolog=DIR/* and put both into DIR" in done.stdout
        scontrol.chmod(0o777)
        done = subprocess.run([TOOL, "generate", "slurm", "prolog"], env=env, capture_output=True, text=True, timeout=60)
        assert folder not in done.stdout


@pytest.mark.sampled(2)
@pytest.mark.parametrize("piece", ["prolog", "epilog", "task-prolog", "health-check", "batch", "batch --isolate"])
def test_shellcheck_finds_nothing(tmp_path: Path, piece: str) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck is not installed")
    hook = generated(tmp_path / "hook.sh", *piece.split(), "--tool", "/opt/it's here/torchtune-sys", "--policy", "/etc/a b.toml")
    done = subprocess.run([shellcheck, hook], capture_output=True, text=True, timeout=60)
    assert done.stdout == ""


def test_a_health_check_ends_before_slurmd_ends_it(tmp_path: Path) -> None:
    """It could take 55 s, and Slurm's commands as long again: it was ended between the drain and the count of drained nodes."""
    tool, slow = tmp_path / "tool", tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\nsleep 1\necho 'torchtune-sys: [node] x: y'\nexit 1\n")
    slow.write_text(f"#!/bin/sh\necho \"$*\" >>{tmp_path}/asked\necho 'NodeName=here State=IDLE '\n")
    for program in (tool, slow):
        program.chmod(0o755)
    hook = generated(tmp_path / "health.sh", "health-check", "--tool", str(tool), "--budget", "60")
    text = hook.read_text()
    assert "--budget 30 " in text and "timeout --kill-after=1 4 " in text
    late = text.replace("\nset -u\n", "\nset -u\nSECONDS=30\n").replace("export PATH=", f"export PATH={tmp_path}:", 1)
    hook.write_text(late)
    done = subprocess.run([hook], env={**os.environ, "SLURMD_NODENAME": "here"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Slurm answers late: the next check drains here: torchtune-sys: [node] x: y" in done.stderr
    assert "state=drain" not in (tmp_path / "asked").read_text()
