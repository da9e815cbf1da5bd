"""The joint pre-flight below the launchers that people use: each rank finds its place by what the launcher sets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import slurm_here

from preflight.joint.cluster import TOOL
from smoke.faults.bench import torch_python

pytestmark = pytest.mark.long
WORDS = ["preflight", "--level", "standard", "--format", "json"]
PORT = "29741"


def command(folder: Path) -> list[str]:
    policy = folder / "policy.toml"
    policy.write_text('warning = ["error"]\n')  # this machine's own findings are none of the test's
    if not TOOL.exists():
        pytest.skip(f"{TOOL} is not installed")
    return [str(TOOL), *WORDS, "--python", torch_python(), "--policy", str(policy)]


def ran(argv: list[str], folder: Path, **env: str) -> list[dict[str, Any]]:
    """The verdicts of all ranks, which print one after the other."""
    given = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(argv, env=given, cwd=folder, capture_output=True, text=True, timeout=150, check=False)
    found, at, text = [], 0, done.stdout
    while (at := text.find("{", at)) >= 0:
        verdict, at = json.JSONDecoder().raw_decode(text, at)
        found.append(verdict)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return found


def are_together(verdicts: list[dict[str, Any]], ranks: int) -> None:
    assert len(verdicts) == ranks
    assert [verdict["scale"] for verdict in verdicts] == [{"nodes": 1, "ranks": ranks}] * ranks
    assert {verdict["verdict"] for verdict in verdicts} == {"go"}


def test_below_mpirun(tmp_path: Path) -> None:
    if shutil.which("mpirun.openmpi") is None:
        pytest.skip("needs Open MPI")
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", "-x", "MASTER_ADDR", "-x", "MASTER_PORT"]
    are_together(ran([*mpirun, *command(tmp_path)], tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT), 2)


@pytest.mark.exhaustive
def test_below_torchrun_whose_store_holds_the_port(tmp_path: Path) -> None:
    torchrun = str(Path(torch_python()).with_name("torchrun"))
    argv = [torchrun, "--no-python", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", "29751"]
    are_together(ran([*argv, *command(tmp_path)], tmp_path), 2)


@pytest.mark.exhaustive
def test_below_srun(tmp_path: Path) -> None:
    folder = tmp_path / "slurm"
    folder.mkdir()
    words = command(tmp_path)
    try:
        with slurm_here.cluster(folder, "task/none", 4) as env:
            argv = ["srun", "--ntasks", "2", "--chdir", str(tmp_path), *words]
            are_together(ran(argv, tmp_path, **env, MASTER_ADDR="127.0.0.1", MASTER_PORT="29761"), 2)
    except slurm_here.Unavailable as why:
        pytest.skip(str(why))


def test_a_job_of_one_rank_is_judged_alone(tmp_path: Path) -> None:
    argv = [*command(tmp_path), "--alone", "--level", "fast"]
    (verdict,) = ran(argv, tmp_path, RANK="0", WORLD_SIZE="4", MASTER_ADDR="192.0.2.1", MASTER_PORT=PORT)
    assert verdict["scale"]["nodes"] == 1
