"""Real: eleven hosts with one fault each, asked by fleet over srun and over ClusterShell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import namespace_hosts as cluster
import pytest
import slurm_of_many

import warm

TIMEOUT_S = 30
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, tuple[str, ...]]]:
    root = tmp_path_factory.mktemp("fleet")
    root.chmod(0o755)
    try:
        with cluster.hosts(root) as command:
            yield root, command
    except cluster.Unavailable as why:
        pytest.skip(str(why))


def fleet(env: dict[str, str], *words: str) -> tuple[dict[str, Any], float, int]:
    begun = time.monotonic()
    done = subprocess.run(
        [*warm.PROGRAM, "fleet", "--format", "json", "--timeout", str(TIMEOUT_S), *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout), time.monotonic() - begun, done.returncode


def named(found: dict[str, Any]) -> None:
    """Each fault at its host, and nothing heavy elsewhere; who did not answer, and why."""
    told = {(item["host"], item["fact"]) for item in found["odd"]}
    assert {(host, fact) for host, (_, _, fact) in cluster.FAULTS.items()} <= told
    assert {host for host, _ in told} == set(cluster.FAULTS), "a host without a fault is odd"
    why = {item["name"]: item["why"] for item in found["unread"]}
    assert set(why) == set(cluster.SILENT)
    assert "no answer within" in why["n9"]
    assert "Welcome" in why["n11"]


def test_over_srun_each_fault_is_named_and_nobody_holds_it_up(hosts: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    root, command = hosts
    at = tmp_path / "on-this-node"
    at.write_text(f'#!/bin/sh\nexec {root}/at "$SLURMD_NODENAME" "$@"\n')
    at.chmod(0o755)
    try:
        with slurm_of_many.cluster(tmp_path, cluster.NAMES, ["n10"]) as env:
            found, seconds, status = fleet(env, "--slurm", "--save", str(tmp_path / "all.jsonl"), "--", str(at), *command)
    except slurm_of_many.Unavailable as why:
        pytest.skip(str(why))
    named(found)
    assert status == 1
    assert seconds < 3 * TIMEOUT_S
    why = {item["name"]: item["why"] for item in found["unread"]}
    assert "down" in why["n10"] and "died" in why["n10"]
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == len(cluster.NAMES)


@pytest.mark.exhaustive
def test_over_srun_a_slurmd_that_died_unnoticed_is_named_and_holds_up_nobody(
    hosts: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    """Slurm still calls it idle; nothing of ours waits in the queue."""
    root, command = hosts
    at = tmp_path / "on-this-node"
    at.write_text(f'#!/bin/sh\nexec {root}/at "$SLURMD_NODENAME" "$@"\n')
    at.chmod(0o755)
    names = [name for name in cluster.NAMES if name not in ("n9", "n11")]
    try:
        with slurm_of_many.cluster(tmp_path, names, [], ["n10"]) as env:
            found, seconds, status = fleet(env, "--slurm", "--", str(at), *command)
            asked = ["squeue", "-h", "--states=PENDING,RUNNING"]
            queue = subprocess.run(asked, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    except slurm_of_many.Unavailable as why:
        pytest.skip(str(why))
    told = {(item["host"], item["fact"]) for item in found["odd"]}
    assert {(host, fact) for host, (_, _, fact) in cluster.FAULTS.items()} <= told
    why = {item["name"]: item["why"] for item in found["unread"]}
    print(f"{why} after {seconds:.1f} s")
    assert list(why) == ["n10"]
    assert status == 1
    assert seconds < 3 * TIMEOUT_S
    assert queue.stdout == "", "a job that waits or runs: one that ended stays CG until Slurm calls the node down"


def test_over_clustershell_each_fault_is_named_and_nobody_holds_it_up(
    hosts: tuple[Path, tuple[str, ...]], tmp_path: Path
) -> None:
    if shutil.which("clush") is None:
        pytest.skip("clush is not installed")
    root, command = hosts
    (tmp_path / "ssh").write_text(
        "#!/bin/sh\nwhile :; do case $1 in -l|-o|-p) shift 2;; -*) shift;; *) break;; esac; done\nhost=$1; shift\n"
        f'exec {root}/at "$host" sh -c "$*"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "clush.conf").write_text(f"[Main]\nssh_path: {tmp_path}/ssh\n")
    found, seconds, status = fleet({"CLUSTERSHELL_CFGDIR": str(tmp_path)}, "--nodes", "n[1-11]", "--", *command)
    named(found)
    assert (status, seconds < 3 * TIMEOUT_S) == (1, True)
    assert "exit status 1" in {item["name"]: item["why"] for item in found["unread"]}["n10"]
