"""``launch`` below the real torchrun. TORCHTUNE_SYS_TEST_TORCH names a Python that has torch; with 1, torchrun is looked for on PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from driven import PROGRAM, environment

pytestmark = pytest.mark.slow
CPUS = sorted(os.sched_getaffinity(0))
TELL = "import json, os; print(json.dumps([os.environ['LOCAL_RANK'], sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS']]), flush=True)"


@pytest.fixture(scope="module")
def torchrun() -> str:
    wanted = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")
    places = [str(Path(wanted).parent)] if "/" in wanted else [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    found = shutil.which("torchrun", path=os.pathsep.join(places)) if wanted else None
    if found is None:
        pytest.skip("TORCHTUNE_SYS_TEST_TORCH names no Python with torch")
    return found


def run(torchrun: str, *program: str, port: int, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [torchrun, "--no-python", "--nproc-per-node", "2", "--master-port", str(port), *PROGRAM, "launch", "--", *program]
    return subprocess.run(argv, env=environment(env), capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_two_ranks_get_cpus_of_their_own_and_their_cores_as_threads(torchrun: str) -> None:
    done = run(torchrun, sys.executable, "-c", TELL, port=29641)
    assert done.returncode == 0, done.stderr
    found = {rank: (cpus, threads) for rank, cpus, threads in map(json.loads, done.stdout.splitlines())}
    assert set(found) == {"0", "1"}
    assert not set(found["0"][0]) & set(found["1"][0])
    assert all(int(threads) <= len(cpus) for cpus, threads in found.values())


def test_a_rank_that_fails_ends_the_job_with_its_status(torchrun: str) -> None:
    done = run(torchrun, "sh", "-c", "exit 7", port=29642)
    assert done.returncode != 0
    assert "exitcode  : 7" in done.stderr
