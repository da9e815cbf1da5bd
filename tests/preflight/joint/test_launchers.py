"""The joint pre-flight below the launchers that people use: each rank finds its place by what the launcher sets."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import slurm_here

from preflight import slurm_hosts
from preflight.joint.cluster import TOOL, cluster
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
    """The verdicts of all ranks. ``argv`` ends with the tool's command."""
    at = argv.index(str(TOOL))
    given = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1", **env}
    words = [*argv[:at], *apart(folder, argv[at:])]
    done = subprocess.run(words, env=given, cwd=folder, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return told(folder)


def apart(folder: Path, words: list[str]) -> list[str]:
    """The same command with a file for each rank: launchers mix what ranks print at once."""
    rank = "${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${RANK}}}"
    return ["sh", "-c", f'exec "$@" -o {folder}/told.{rank}', "-", *words]


def told(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("told.*"))]
    for file in folder.glob("told.*"):
        file.unlink()
    return found


def are_together(verdicts: list[dict[str, Any]], ranks: int, nodes: int = 1) -> None:
    assert len(verdicts) == ranks
    assert [verdict["scale"] for verdict in verdicts] == [{"nodes": nodes, "ranks": ranks}] * ranks
    assert {verdict["verdict"] for verdict in verdicts} == {"go"}
    named = {cause["cause"] for verdict in verdicts for node in verdict["nodes"] for cause in node["causes"]}
    assert "master-port-in-use" not in named, "what listens there is the pre-flight itself"
    assert all(len(verdict["nodes"]) == nodes for verdict in verdicts)


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_below_torchrun_on_several_hosts(tmp_path: Path, rendezvous: str) -> None:
    """Each host's torchrun starts two ranks; with c10d it is torchrun that says which host is the first."""
    torchrun = str(Path(torch_python()).with_name("torchrun"))
    words = apart(tmp_path, command(tmp_path))
    with cluster(tmp_path, 3) as made:
        running = []
        for number in range(1, made.nodes + 1):
            argv = [torchrun, "--no-python", "--nnodes", "3", "--nproc-per-node", "2"]
            if rendezvous == "static":
                argv += ["--node-rank", f"{number - 1}", "--master-addr", "n1", "--master-port", "29751"]
            else:
                argv += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29751", "--rdzv-id", "here"]
            env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
            running.append(
                subprocess.Popen(
                    made.argv(number, [*argv, *words]),
                    env=env,
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        printed = [child.communicate(timeout=200) for child in running]
    assert [child.returncode for child in running] == [0] * 3, [errors[-1500:] for _out, errors in printed]
    are_together(told(tmp_path), 6, 3)


@pytest.mark.exhaustive
def test_below_srun_on_several_hosts(tmp_path: Path) -> None:
    """Names and places are Slurm's alone. Then a rank of one host does not start: that host is named by each of the others, and by --exclude."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    words = apart(tmp_path, command(tmp_path))
    lists = tmp_path / "lists"
    lists.mkdir()
    try:
        with slurm_hosts.cluster(folder, 4, "") as made:
            env = {"OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
            srun = ["srun", "-N4", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--chdir", str(tmp_path)]
            done = made.run(*srun, *words, **env)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
            are_together(told(tmp_path), 4, 4)
            text = '[ "$SLURMD_NODENAME" != tt3 ] || exit 0; exec "$@" --budget 40 --lists ' + str(lists)
            done = made.run(*srun, "sh", "-c", text, "-", *words, **env)
            verdicts = told(tmp_path)
            assert [verdict["absent"] for verdict in verdicts] == [["tt3"]] * 3, done.stderr[-2000:]
            assert (lists / "exclude.txt").read_text() == "--exclude=tt3\n"
    except slurm_hosts.Unavailable as why:
        pytest.skip(str(why))


@pytest.mark.exhaustive
def test_below_mpirun_on_several_hosts(tmp_path: Path) -> None:
    if shutil.which("mpirun.openmpi") is None:
        pytest.skip("needs Open MPI")
    words = apart(tmp_path, command(tmp_path))
    with cluster(tmp_path, 3) as made:
        agent = tmp_path / "agent"
        places = "".join(f'n{number}) set -- {shlex.join(made.argv(number, []))} "$@";; ' for number in range(1, made.nodes + 1))
        agent.write_text(
            '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done; host=$1; shift; set -- bash -c "$*"\n'
            f'case $host in {places} esac; exec "$@"\n'
        )
        agent.chmod(0o755)
        mpirun = [
            "mpirun.openmpi",
            "--allow-run-as-root",
            "--host",
            "n1:2,n2:2,n3:2",
            "-n",
            "6",
            "-x",
            "MASTER_ADDR",
            "-x",
            "MASTER_PORT",
        ]
        mpirun += ["-x", "OMP_NUM_THREADS", "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "eth0"]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "n1",
            "MASTER_PORT": PORT,
        }
        argv = made.argv(1, [*mpirun, *words])
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    are_together(told(tmp_path), 6, 3)


def test_a_job_of_one_rank_is_judged_alone(tmp_path: Path) -> None:
    argv = [*command(tmp_path), "--alone", "--level", "fast"]
    (verdict,) = ran(argv, tmp_path, RANK="0", WORLD_SIZE="4", MASTER_ADDR="192.0.2.1", MASTER_PORT=PORT)
    assert verdict["scale"]["nodes"] == 1
