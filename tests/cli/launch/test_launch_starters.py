"""``launch`` below the real srun, mpirun and torchrun: each rank's affinity read back, eight of them at once, and who binds already.

torchrun: TORCHTUNE_SYS_TEST_TORCH names a Python that has torch; with 1, torchrun is looked for on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import slurm_here
from driven import PROGRAM, environment, run

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.launchers import local_rank, slurm_binds_each, slurm_gives_gpus_to_each

pytestmark = pytest.mark.slow
CPUS = sorted(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
TELL = """
import json, os, sys, time
found = {"cpus": sorted(os.sched_getaffinity(0)), "env": dict(os.environ), "time": time.time(), "busy": time.process_time()}
names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
rank = next(os.environ[name] for name in names if name in os.environ)
with open(os.path.join(sys.argv[1], rank + "." + str(os.getpid())), "x") as file:
    json.dump(found, file)
"""
LAUNCH = (*PROGRAM, "launch", "--")
Ranks = dict[int, dict[str, Any]]


def started(
    folder: Path, starter: list[str], *, through: tuple[str, ...] = LAUNCH, env: Mapping[str, str] | None = None
) -> Ranks:
    """What each rank found of itself, by its local rank."""
    folder.mkdir()
    own = {name: value for name, value in environment().items() if not name.startswith(("SLURM_", "OMPI_", "LOCAL_", "CUDA_VIS"))}
    argv = [*starter, *through, sys.executable, "-c", TELL, str(folder)]
    done = subprocess.run(argv, env={**own, **(env or {})}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {int(path.name.partition(".")[0]): json.loads(path.read_text()) for path in folder.iterdir()}
    for rank, line in found.items():
        line["said"] = next((row for row in done.stderr.splitlines() if f"local rank {rank}: " in row), "")
    return found


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Believes in eight CPUs, and binds nothing."""
    yield from _slurm(tmp_path_factory, "task/none", 8)


@pytest.fixture(scope="module")
def binding_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    yield from _slurm(tmp_path_factory, "task/affinity", os.cpu_count() or 1)


def _slurm(factory: pytest.TempPathFactory, plugin: str, cpus: int) -> Iterator[dict[str, str]]:
    try:
        with slurm_here.cluster(factory.mktemp("slurm"), plugin, cpus) as env:
            yield env
    except slurm_here.Unavailable as why:
        pytest.skip(f"no Slurm here: {why}")


@pytest.fixture(scope="module")
def mpirun() -> list[str]:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    return ["mpirun", "--allow-run-as-root", "--oversubscribe"]


@pytest.fixture(scope="module")
def hydra() -> list[str]:
    """MPICH's, which Intel MPI and MVAPICH are made from."""
    if shutil.which("mpiexec.hydra") is None:
        pytest.skip("MPICH is not installed")
    return ["mpiexec.hydra"]


@pytest.fixture(scope="module")
def torchrun() -> list[str]:
    wanted = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")
    places = [str(Path(wanted).parent)] if "/" in wanted else [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    found = shutil.which("torchrun", path=os.pathsep.join(places)) if wanted else None
    if found is None:
        pytest.skip("TORCHTUNE_SYS_TEST_TORCH names no Python with torch")
    return [found, "--no-python", "--standalone"]


def eight(request: pytest.FixtureRequest, starter: str) -> tuple[list[str], Mapping[str, str]]:
    if starter == "srun":
        return ["srun", "--quiet", "-n8"], request.getfixturevalue("slurm")
    if starter == "mpirun":
        return [*request.getfixturevalue("mpirun"), "-np", "8", "--bind-to", "none"], {}
    if starter == "hydra":
        return [*request.getfixturevalue("hydra"), "-n", "8"], {}
    return [*request.getfixturevalue("torchrun"), "--nproc-per-node=8"], {}


@pytest.mark.sampled(1, 2)
@two_cpus
@pytest.mark.parametrize("starter", ["srun", "mpirun", "hydra", "torchrun"])
def test_eight_ranks_at_once_agree(request: pytest.FixtureRequest, tmp_path: Path, starter: str) -> None:
    """Each comes to its seat alone; together they hold what ``generate numactl`` says of all of them."""
    argv, env = eight(request, starter)
    began = time.time()
    found = started(tmp_path / "a", argv, env=env)
    with_launch = max(line["time"] for line in found.values()) - began
    began = time.time()
    bare = started(tmp_path / "b", argv, through=(), env=env)
    without = max(line["time"] for line in bare.values()) - began
    busy = [statistics.median(line["busy"] for line in lines.values()) for lines in (found, bare)]
    print(
        f"{starter}: 8 ranks run after {with_launch:.2f} s, without launch after {without:.2f} s, on {len(CPUS)} CPUs;"
        f" {1000 * busy[0]:.0f} ms of one CPU each instead of {1000 * busy[1]:.0f} ms"
    )
    assert sorted(found) == list(range(8)) == sorted(bare)
    assert all(line["cpus"] == CPUS for line in bare.values())
    said = json.loads(run("generate", "numactl", "--nproc-per-node", "8", "--format", "json").stdout)["seats"]
    assert {rank: line["cpus"] for rank, line in found.items()} == {
        seat["rank"]: sorted(CpuSet.parse(seat["cpus"])) for seat in said
    }
    held = [cpu for line in found.values() for cpu in line["cpus"]]
    assert set(held) <= set(CPUS) and (len(held) == len(set(held)) or len(CPUS) < 8)
    assert {line["env"]["OMP_NUM_THREADS"] for line in found.values()} == {str(seat["threads"]) for seat in said}
    assert busy[0] < 12 * busy[1] + 0.1  # what a loaded machine leaves as it is


@pytest.mark.sampled(1, 2)
@two_cpus
@pytest.mark.skipif(shutil.which("numactl") is None, reason="numactl is not installed")
@pytest.mark.parametrize("starter", ["srun", "mpirun", "hydra", "torchrun"])
def test_the_wrapper_gives_eight_ranks_the_same(request: pytest.FixtureRequest, tmp_path: Path, starter: str) -> None:
    argv, env = eight(request, starter)
    wrapper = tmp_path / "bind.sh"
    assert run("generate", "numactl", "--nproc-per-node", "8", "--format", "wrapper", "-o", str(wrapper)).returncode == 0
    wrapper.chmod(0o755)
    found = started(tmp_path / "found", argv, through=(str(wrapper),), env=env)
    said = json.loads(run("generate", "numactl", "--nproc-per-node", "8", "--format", "json").stdout)["seats"]
    assert {rank: line["cpus"] for rank, line in found.items()} == {
        seat["rank"]: sorted(CpuSet.parse(seat["cpus"])) for seat in said
    }


@two_cpus
@pytest.mark.parametrize("options", ["", "--bind-to none", "--bind-to core", "--bind-to socket"])
def test_mpirun(tmp_path: Path, mpirun: list[str], options: str) -> None:
    """By itself it binds two ranks to a core each: that is kept. What it leaves to all is shared out."""
    argv = [*mpirun, "-np", "2", *options.split()]
    alone = started(tmp_path / "alone", argv, through=())
    found = started(tmp_path / "found", argv)
    bound = alone[0]["cpus"] != CPUS
    assert bound is ("already bound by what started it" in found[0]["said"])
    assert not set(found[0]["cpus"]) & set(found[1]["cpus"])
    assert not bound or all(found[rank]["cpus"] == alone[rank]["cpus"] for rank in found)
    assert options != "--bind-to none" or not bound


@two_cpus
@pytest.mark.parametrize(
    "options", ["", "--cpu-bind=none", "--cpu-bind=cores", "--cpu-bind=map_cpu:1,0", "--cpu-bind=mask_cpu:0x3"]
)
def test_srun_that_binds(tmp_path: Path, binding_slurm: Mapping[str, str], options: str) -> None:
    argv = ["srun", "--quiet", "-n2", *options.split()]
    alone = started(tmp_path / "alone", argv, through=(), env=binding_slurm)
    found = started(tmp_path / "found", argv, env=binding_slurm)
    bound = not set(alone[0]["cpus"]) & set(alone[1]["cpus"])
    assert bound is not options.endswith(("none", "0x3"))
    assert {slurm_binds_each(line["env"]) for line in alone.values()} == {bound}
    assert not bound or all(found[rank]["cpus"] == alone[rank]["cpus"] for rank in found)
    assert not set(found[0]["cpus"]) & set(found[1]["cpus"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("options", "each_its_own"),
    [
        ("-n2 --gpus=2", False),
        ("-n2 --gpus-per-task=1", True),
        ("-n2 --gpus=2 --gpu-bind=single:1", True),
        ("-n2 --gpus=2 --gpu-bind=per_task:1", True),
        ("-n2 --gpus=2 --ntasks-per-gpu=1", True),
        ("-n2 --gpus=2 --gpu-bind=map_gpu:1,0", True),
        ("-n4 --gpus=2 --gpu-bind=single:2", False),
        ("-n4 --gpus=2", False),
        ("-n2 --gpus=1", False),
    ],
)
@pytest.mark.parametrize("inside", ["alone", "batch"])
def test_which_gpus_slurm_shows_to_tasks(
    tmp_path: Path, slurm: Mapping[str, str], options: str, each_its_own: bool, inside: str
) -> None:
    """Whether the options are srun's own or those of the batch script around it."""
    argv = ["srun", "--quiet", *options.split()]
    if inside == "batch":
        script = tmp_path / "job.sh"
        script.write_text('#!/bin/sh\nexec srun --quiet "$@"\n')
        argv = ["sbatch", "--quiet", "--wait", f"--output={tmp_path}/out", *options.split(), str(script)]
    found = started(tmp_path / "found", argv, through=(), env=slurm)
    seen = [line["env"].get("CUDA_VISIBLE_DEVICES", "").split(",") for line in found.values()]
    every = [number for numbers in seen for number in numbers]
    assert (len(every) == len(set(every))) is each_its_own, seen
    for rank, line in found.items():
        who = local_rank(line["env"])
        assert who is not None and (who.rank, who.ranks) == (rank, len(found))
        numbers = line["env"]["CUDA_VISIBLE_DEVICES"].split(",")
        assert slurm_gives_gpus_to_each(line["env"], len(found), len(numbers)) is each_its_own


@pytest.mark.long
@two_cpus
def test_torchrun(tmp_path: Path, torchrun: list[str]) -> None:
    found = started(tmp_path / "found", [*torchrun, "--nproc-per-node=2"])
    assert set(found) == {0, 1}
    assert not set(found[0]["cpus"]) & set(found[1]["cpus"])
    assert all(int(line["env"]["OMP_NUM_THREADS"]) <= len(line["cpus"]) for line in found.values())


@pytest.mark.long
def test_torchrun_ends_the_job_where_a_rank_fails(torchrun: list[str]) -> None:
    argv = [*torchrun, "--nproc-per-node=2", *LAUNCH, "sh", "-c", "exit 7"]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "exitcode  : 7" in done.stderr
