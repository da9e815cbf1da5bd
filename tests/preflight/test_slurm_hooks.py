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
