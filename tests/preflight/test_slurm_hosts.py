"""The scripts under a Slurm of eight hosts: one bad node is left out, a wrong check takes out no more than the limit, jobs go on elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight import slurm_hosts
from preflight.joint.faults.computing import HOOK
from preflight.slurm_hosts import Cluster
from smoke.faults.bench import torch_python

TOOL = Path(sys.executable).with_name("torchtune-sys")
NODES = 8
POLICY = """
warning = ["error"]          # this machine's own findings are none of the test's
fatal = ["dev-shm-too-small"]
[rules.dev-shm-small]
min_mib = 64
"""
TINY, WIDE = "mount -t tmpfs -o size=16m none /dev/shm", "umount /dev/shm"
REASON = "torchtune-sys: [node] dev-shm-too-small: /dev/shm: 16 MiB"
CONF = """
PrologFlags=Alloc
Prolog={root}/prolog.sh
Epilog={root}/epilog.sh
PrologEpilogTimeout=120
MinJobAge=2
"""
HOOKS = ("prolog", "epilog")

pytestmark = pytest.mark.long


def generated(root: Path, piece: str, *words: str | Path) -> Path:
    place = root / f"{piece}.sh"
    argv = [TOOL, "generate", "slurm", piece, "--policy", root / "policy.toml", *words, "-o", place]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    place.chmod(0o755)
    return place


def until(is_so: Callable[[], bool], seconds: float = 120) -> float:
    """The seconds that it took."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < seconds, "it did not come"
        time.sleep(0.1)
    return time.monotonic() - begun


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("hosts")
    if not TOOL.exists():
        pytest.skip(f"the tool is not installed beside {sys.executable}")
    root.chmod(0o755)
    (root / "policy.toml").write_text(POLICY)
    for piece in (*HOOKS, "batch"):
        generated(root, piece, "--budget", "60")
    try:
        with slurm_hosts.cluster(root, NODES, CONF.format(root=root)) as found:
            yield found
    except slurm_hosts.Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def nodes(eight: Cluster) -> Iterator[Cluster]:
    """All in service before, and put right after."""
    eight.resume()
    yield eight
    eight.run("scancel", "--user=root")
    for node in eight.nodes:
        eight.run("sh", "-c", f"while {WIDE} 2>/dev/null; do :; done", node=node)
    for piece in HOOKS:
        generated(eight.root, piece, "--budget", "60")
    until(lambda: eight.run("squeue", "-h").stdout == "")


def submitted(nodes: Cluster, text: str, *words: str) -> str:
    (nodes.root / "job.sh").write_text(f"#!/bin/bash\n{text}\n")
    done = nodes.run("sbatch", "--parsable", f"--chdir={nodes.root}", *words, nodes.root / "job.sh")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_bad_node_is_refused_and_its_batch_job_runs_elsewhere(nodes: Cluster) -> None:
    """srun fails, as its allocation did; a batch job waits 120 s unless somebody says now."""
    nodes.shell("tt1", TINY)
    done = nodes.run("srun", "-N", str(NODES), "true")
    assert done.returncode != 0
    assert "Prolog failure on node tt1" in done.stderr
    assert nodes.drained() == {"tt1": nodes.drained()["tt1"]}
    assert nodes.drained()["tt1"].startswith(REASON)
    nodes.shell("tt1", WIDE)
    nodes.resume()

    nodes.shell("tt1", TINY)
    job = submitted(nodes, "srun hostname >out.$SLURM_JOB_ID", "-N2")
    until(lambda: nodes.drained().get("tt1", "").startswith(REASON))
    until(lambda: "JobState=PENDING" in nodes.run("scontrol", "show", "job", job, "-o").stdout)
    assert "Reason=BeginTime" in nodes.run("scontrol", "show", "job", job, "-o").stdout, "held: it would wait for ever"
    nodes.run("scontrol", "update", f"jobid={job}", "starttime=now")
    out = nodes.root / f"out.{job}"
    took = until(lambda: out.exists() and len(out.read_text().split()) == 2)
    print(f"on other nodes {took:.1f} s after starttime=now")
    assert "tt1" not in out.read_text().split()


@pytest.mark.exhaustive
def test_an_array_runs_on_the_nodes_that_are_fit(nodes: Cluster) -> None:
    nodes.shell("tt2", TINY)
    job = submitted(nodes, "hostname >out.$SLURM_ARRAY_JOB_ID.$SLURM_ARRAY_TASK_ID", "--array=1-8", "--exclusive")
    outs = [nodes.root / f"out.{job}.{number}" for number in range(1, 9)]

    def all_ran() -> bool:
        nodes.run("sh", "-c", "squeue -h -t PD -o %i | xargs -I{} scontrol update jobid={} starttime=now")
        return all(out.exists() and out.read_text() for out in outs)

    until(all_ran)
    assert {out.read_text().strip() for out in outs} <= set(nodes.nodes) - {"tt2"}
    assert list(nodes.drained()) == ["tt2"]


def test_a_hung_check_ends_at_its_own_limit_with_no_process_left(nodes: Cluster) -> None:
    tool = nodes.root / "hung"
    tool.write_text("#!/bin/sh\ntrap '' TERM\nsleep 7654 & sleep 7654\n")
    tool.chmod(0o755)
    generated(nodes.root, "prolog", "--tool", tool, "--budget", "1")
    begun = time.monotonic()
    assert nodes.run("srun", "-N1", "true").returncode == 0
    print(f"srun after {time.monotonic() - begun:.1f} s; the script's own limit is 4 s, and 2 s to end it")
    assert not nodes.drained()
    until(lambda: b"\0007654\0" not in b"".join(commands()), 60)


def commands() -> Iterator[bytes]:
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield place.read_bytes()
        except OSError:
            continue


HANGS_THERE = """
import os
def plant(torch):
    import torch.distributed as dist
    right = dist.init_process_group
    def hanging(*words, **named):
        import time
        if os.uname().nodename.startswith("tt3"):
            time.sleep(1000)
        right(*words, **named)
    dist.init_process_group = hanging
"""


@pytest.mark.exhaustive
def test_the_batch_script_isolates_a_node_whose_collectives_hang(nodes: Cluster) -> None:
    for piece in HOOKS:
        generated(nodes.root, piece, "--tool", "/bin/true")
    generated(nodes.root, "batch", "--isolate", "--python", torch_python())
    place = nodes.root / "planted"
    place.mkdir(mode=0o755)
    ready = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "init_process_group")'
    (place / "sitecustomize.py").write_text(HANGS_THERE + HOOK.replace("{ready}", ready))
    words = ("--chdir", nodes.root, "--output=batch.%j", "-N4", "--nodelist=tt[1-4]", "--parsable", nodes.root / "batch.sh")
    ask = {"TORCHTUNE_SYS_NODES": "3", "PYTHONPATH": str(place)}
    try:
        job = nodes.run("sbatch", *words, "hostname", **ask).stdout.strip()
        until(lambda: nodes.run("squeue", "-h").stdout == "", 400)
    finally:
        generated(nodes.root, "batch", "--budget", "60")
    said = (nodes.root / f"batch.{job}").read_text()
    assert "together: tt3: [network] straggler-network" in said
    assert "tt3 is left out: a bad node, or an end of a bad link" in said
    assert {"tt1", "tt2", "tt4"} <= set(said.split("\n")), said


def test_the_batch_script_leaves_out_bad_nodes_and_starts_on_the_rest(nodes: Cluster) -> None:
    for piece in HOOKS:  # they let pass what the batch script is to find
        generated(nodes.root, piece, "--tool", "/bin/true")
    nodes.shell("tt2", TINY)
    words = ("--chdir", nodes.root, "--output=batch.%j", "-N4", "--nodelist=tt[1-4]", "--parsable", nodes.root / "batch.sh")
    ask = {"TORCHTUNE_SYS_NODES": "2", "TORCHTUNE_SYS_EXCLUDE": "tt3,tt7,nowhere"}
    job = nodes.run("sbatch", *words, "sh", "-c", "hostname; exit 9", **ask).stdout.strip()
    until(lambda: nodes.run("squeue", "-h").stdout == "")
    said = (nodes.root / f"batch.{job}").read_text()
    assert "tt2 is left out: [node] dev-shm-too-small" in said
    assert "tt7 is not a node of this job; ignored" in said
    assert "nowhere is not a node of this cluster; ignored" in said
    assert "2 of 4 nodes are fit, 2 start; left out: " in said
    assert {"tt1", "tt4"} <= set(said.split("\n"))
    assert "ExitCode=9:0" in nodes.run("scontrol", "show", "job", job, "-o").stdout
    job = nodes.run("sbatch", *words, "hostname", TORCHTUNE_SYS_NODES="4").stdout.strip()
    until(lambda: nodes.run("squeue", "-h").stdout == "")
    assert "3 of 4 nodes are fit, 4 are needed: PROGRAM is not started" in (nodes.root / f"batch.{job}").read_text()
    assert "ExitCode=75:0" in nodes.run("scontrol", "show", "job", job, "-o").stdout


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("", ["1", "1"]),
        ("-n 8 -c 1", ["2", "2"]),
        ("--ntasks-per-node=2", ["2", "2"]),
        ("--gpus-per-node=2", ["1 0,1", "1 0,1"]),
        ("--gpus=8", ["1 0,1", "1 0,1"]),
        ("--gpus=8 --ntasks-per-gpu=1", ["2 0,1", "2 0,1"]),
        ("--gpus-per-task=1 --ntasks-per-node=2", ["1 0", "1 0", "1 1", "1 1"]),
        ("--mem-per-gpu=10 --gpus-per-node=1", ["1 0", "1 0"]),
    ],
)
def test_the_batch_script_checks_and_starts_what_the_job_asked_for(nodes: Cluster, asked: str, wanted: list[str]) -> None:
    """What sbatch was given are options of each srun in the script, too, by the environment: for all nodes, the spare ones among them."""
    for piece in HOOKS:
        generated(nodes.root, piece, "--tool", "/bin/true")
    words = (
        "--chdir",
        nodes.root,
        "--output=batch.%j",
        "-N4",
        "--nodelist=tt[1-4]",
        "--wait",
        "--parsable",
        *asked.split(),
        nodes.root / "batch.sh",
    )
    done = nodes.run("sbatch", *words, "sh", "-c", "echo on:$SLURMD_NODENAME:$CUDA_VISIBLE_DEVICES", TORCHTUNE_SYS_NODES="2")
    said = (nodes.root / f"batch.{done.stdout.strip()}").read_text()
    assert done.returncode == 0 and "4 of 4 nodes are fit, 2 start" in said and "could" not in said, said
    tasks = Counter(row for row in said.split("\n") if row.startswith("on:tt"))
    assert len({task.split(":")[1] for task in tasks}) == 2
    assert sorted(f"{count} {task.split(':')[2]}".strip() for task, count in tasks.items()) == wanted, said


def test_the_batch_script_refuses_a_heterogeneous_job(nodes: Cluster) -> None:
    words = (
        "--chdir",
        nodes.root,
        "--output=het.%j",
        "--wait",
        "--parsable",
        "-N1",
        ":",
        "-N2",
        nodes.root / "batch.sh",
        "hostname",
    )
    assert nodes.run("sbatch", *words).returncode == 64


def test_the_task_prolog_gives_environment_and_place(nodes: Cluster) -> None:
    """Under a Slurm that binds nobody, two tasks of a node get CPUs of their own."""
    script = generated(nodes.root, "task-prolog")
    text = "echo $SLURM_LOCALID $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) ${OMP_NUM_THREADS-}"
    done = nodes.run("srun", "-N1", "-n2", "--ntasks-per-node=2", f"--task-prolog={script}", "sh", "-c", text)
    assert done.returncode == 0, done.stderr
    rows = sorted(line.split() for line in done.stdout.splitlines())
    assert [row[0] for row in rows] == ["0", "1"]
    if len(os.sched_getaffinity(0)) > 1:
        assert rows[0][1] != rows[1][1]
        assert all(row[2:] for row in rows), "OMP_NUM_THREADS"
    broken = nodes.root / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    script = generated(nodes.root, "task-prolog", "--tool", broken)
    assert nodes.run("srun", "-n1", f"--task-prolog={script}", "true").returncode == 0


@pytest.mark.exhaustive
def test_the_epilog_tells_what_a_job_left_behind(nodes: Cluster) -> None:
    log = nodes.root / "journal"
    (nodes.root / "logger").write_text(f'#!/bin/sh\necho "$@" >>{log}\n')
    (nodes.root / "logger").chmod(0o755)
    nodes.shell("tt1", f"mount --bind {nodes.root}/logger /usr/bin/logger")
    left = Path(__file__).with_name("left_behind.py")
    pid = nodes.root / "pid"
    # A process that Slurm does not see: it has left its job's process tree, and its environment.
    done = nodes.run("srun", "-N1", "--nodelist=tt1", "env", "-i", sys.executable, left, "1100", pid)
    try:
        assert done.returncode == 0, done.stderr
        until(lambda: log.exists() and "leftover-processes: 1 processes of 12345 hold 1.1 GiB" in log.read_text())
        assert "after job " in log.read_text()
        assert not nodes.drained()
    finally:
        os.kill(int(pid.read_text()), 9)
        nodes.run("umount", "/usr/bin/logger", node="tt1")


def test_a_wrong_check_takes_out_no_more_nodes_than_the_limit(nodes: Cluster) -> None:
    """All eight judge at once; Slurm itself counts. The others say whom they suspect, and stay."""
    checks = nodes.root / "checks"
    checks.mkdir()
    (checks / "wrong").write_text("#!/bin/sh\necho nothing is well; exit 2\n")
    (checks / "wrong").chmod(0o755)
    generated(nodes.root, "prolog", "--budget", "60", "--site-checks", checks, "--drain-limit", "2")
    nodes.run("srun", "-N", str(NODES), "true")
    until(lambda: nodes.run("squeue", "-h").stdout == "")
    reasons = nodes.drained()
    assert len(reasons) == 2
    assert all(reason.startswith("torchtune-sys: [node] site-wrong: nothing is well") for reason in reasons.values())


@pytest.mark.exhaustive
def test_without_a_word_slurm_waits_two_minutes(nodes: Cluster) -> None:
    nodes.shell("tt1", TINY)
    job = submitted(nodes, "hostname >out.$SLURM_JOB_ID", "-N1")
    took = until(lambda: (nodes.root / f"out.{job}").exists(), 400)
    print(f"on another node after {took:.0f} s")
    assert took > 100


@pytest.mark.exhaustive
def test_fifty_rounds_on_healthy_nodes_drain_none(nodes: Cluster) -> None:
    (nodes.root / "policy.toml").write_text("")
    try:
        for _ in range(50):
            assert nodes.run("srun", "-N", str(NODES), "true").returncode == 0
            assert not nodes.drained()
    finally:
        (nodes.root / "policy.toml").write_text(POLICY)
