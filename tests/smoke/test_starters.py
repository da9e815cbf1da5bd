"""Who starts the smoke test as a script: each launcher for real, and how many ranks say that they ran."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
import slurm_here

from smoke.faults.bench import torch_python
from torchtune_sys.model.launchers import VARIABLES
from torchtune_sys.smoke.script import source

pytestmark = pytest.mark.long
_ARGUMENTS = ("--stages", "rendezvous", "--device", "cpu")
_PATIENCE_S = 300
_MPI = (("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"), ("mpiexec.hydra", "-n", "2"))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("script") / "smoke.py"
    path.write_text(source())
    return str(path)


def _environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")} | more


def _ranks(argv: list[str], env: dict[str, str], cwd: Path) -> int:
    """As many as the last line says."""
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    told = re.findall(r"smoke test: pass, (\d+) rank", done.stdout)
    assert len(told) == 1, done.stdout[-2000:] + done.stderr[-2000:]
    return int(told[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", _MPI, ids=lambda words: words[0])
def test_mpi_starts_ranks_that_meet(words: tuple[str, ...], script: str, tmp_path: Path) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    assert _ranks([*words, torch_python(), script, *_ARGUMENTS], _environment(TMPDIR=str(tmp_path)), tmp_path) == 2


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    torch_python()
    with tempfile.TemporaryDirectory(prefix="tts-") as folder:
        try:
            with slurm_here.cluster(Path(folder), "task/none", 4) as env:
                yield _environment(**env)
        except slurm_here.Unavailable as why:
            pytest.skip(f"no Slurm here: {why}")


@pytest.mark.exhaustive  # test_nodes.py has two of srun in CI
def test_tasks_of_a_step_are_ranks(slurm: dict[str, str], script: str, tmp_path: Path) -> None:
    assert _ranks(["srun", "-n", "3", torch_python(), script, *_ARGUMENTS], slurm, tmp_path) == 3


@pytest.mark.exhaustive
def test_the_body_of_a_batch_script_starts_its_own_ranks(slurm: dict[str, str], script: str, tmp_path: Path) -> None:
    """Slurm tells it that it is task 0 of the job."""
    body = tmp_path / "job.sh"
    body.write_text(f"#!/bin/sh\nexec {torch_python()} {script} {' '.join(_ARGUMENTS)}\n")
    out = tmp_path / "out"
    assert _ranks(["sh", "-c", f"sbatch -W -n 4 -o {out} {body}; cat {out}"], slurm, tmp_path) == 2


@pytest.mark.exhaustive
def test_a_shell_of_srun_pty_starts_its_own_ranks(slurm: dict[str, str], script: str, tmp_path: Path) -> None:
    command = f"srun --pty sh -c '{torch_python()} {script} {' '.join(_ARGUMENTS)}'"
    assert _ranks(["script", "-qec", command, "/dev/null"], slurm, tmp_path) == 2


@pytest.mark.exhaustive
def test_two_ranks_of_one_number_are_said_at_once(script: str, tmp_path: Path) -> None:
    with slurm_here.socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = _environment(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TMPDIR=str(tmp_path))
    argv = [torch_python(), script, *_ARGUMENTS]
    ranks: list[subprocess.Popen[str]] = []
    for number in ("1", "1", "0"):  # at whose end they meet: should one be later than the others' whole test, it meets nobody
        until = time.monotonic() + 100
        while number == "0" and not all(_has_torch(rank.pid) for rank in ranks) and time.monotonic() < until:
            time.sleep(0.1)
        ranks.append(
            subprocess.Popen(argv, env=env | {"RANK": number}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    told = [rank.communicate(timeout=_PATIENCE_S)[0] for rank in ranks]
    assert any("two processes say that they are rank 1 [wrong-world-size]" in text for text in told), told


def _has_torch(pid: int) -> bool:
    return "libtorch_python" in Path(f"/proc/{pid}/maps").read_text()


def test_the_script_s_variables_are_those_of_the_one_table() -> None:
    text = source()
    names = set(re.findall(r'"([A-Z0-9_]*(?:RANK|RANKID|PROCID))"', text.partition("STARTERS = (")[2].partition("\n)")[0]))
    assert {"RANK", "PMI_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "SLURM_PROCID"} <= names
    assert {name for name in names if "LOCAL" not in name} <= VARIABLES


def test_the_first_host_is_scontrol_s(slurm: dict[str, str]) -> None:
    """The function stands in the script, which needs torch: it is taken from there by itself."""
    text = source()
    body = text[text.index("def first_host(") :]
    space: dict[str, object] = {"re": re}
    exec(body[: body.index("\n\n\n")], space)
    compared = 0
    for nodes in ("n[1-3]", "n[003-007,12]", "n[12,003-007],login1", "r[1-2]n[04,08-16]", "alpha,beta", "a7", "n[1-3]-ib"):
        found = subprocess.run(["scontrol", "show", "hostnames", nodes], env=slurm, capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout:  # not every release takes words after brackets
            compared += 1
            assert space["first_host"](nodes) == found.stdout.split()[0], nodes  # type: ignore[operator]
    assert compared >= 5
