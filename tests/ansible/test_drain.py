"""Jobs are taken off a host and the host is given back, by a real Slurm, and by a real kubectl against a server that answers as Kubernetes would.

Only what this role drained is given back, and also if it was an earlier run that drained it, and failed behind it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_api
import pytest
import slurm_here
from controller import Played, Plays
from kubernetes_api import NODE, Cluster, pod

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

TOOL = Path(sys.executable).with_name("torchtune-sys")
NOTHING_TO_DO = {
    "torchtune_sys_path": str(TOOL),
    "torchtune_sys_select": ["wsl1-without-gpu"],
    "torchtune_sys_local_facts": False,
}
"""A rule that asks for no change anywhere: a run that has nothing to drain for."""
HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}


def role(plays: Plays, tasks: str, *options: str, **variables: Any) -> Played:
    include = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": tasks}}
    return plays.play([{"hosts": "here", "gather_facts": False, "tasks": [include]}], *options, **variables)


def test_slurm_lets_jobs_end_and_what_somebody_else_drained_stays_so(work: Path, tmp_path: Path) -> None:
    try:
        with slurm_here.cluster(tmp_path, "task/none", 2) as env:
            plays = Plays(work, {"here": HERE}, env=env)

            def slurm(*argv: str) -> str:
                return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

            def state() -> str:
                return slurm("sinfo", "-h", "-N", "-n", "here", "-o", "%T %E")

            job = slurm("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 15")
            until = time.monotonic() + 60
            while slurm("squeue", "-h", "-j", job, "-o", "%T") != "RUNNING" and time.monotonic() < until:
                time.sleep(0.2)
            drained = role(plays, "drain", torchtune_sys_drain="slurm")
            assert drained.status == 0, drained.output
            print(state(), "; jobs:", slurm("squeue", "-h"))
            assert slurm("squeue", "-h") == "" and state().startswith("drained torchtune-sys")
            stopped = role(plays, "give_back", torchtune_sys_drain="slurm", torchtune_sys_stopped=True)
            assert stopped.failed("here") and state().startswith("drained torchtune-sys"), "a manual step is left: no green end"
            back = role(plays, "apply", torchtune_sys_drain="slurm", **NOTHING_TO_DO)
            assert back.status == 0 and state().startswith("idle"), back.output

            for reason in ("fan is loud", "torchtune-sys: [hardware] gpu-ecc-uncorrectable"):  # that of our own pre-flight, too
                slurm("scontrol", "update", "nodename=here", "state=drain", f"reason={reason}")
                for tasks in ("drain", "give_back"):
                    played = role(plays, tasks, torchtune_sys_drain="slurm")
                    assert played.status == 0 and played.changed("here") == [], played.output
                assert state() == f"drained {reason}"
                slurm("scontrol", "update", "nodename=here", "state=resume")
    except slurm_here.Unavailable as why:
        pytest.skip(str(why))


PODS = [pod("train-1"), pod("shm-1", empty_dir=True), pod("exporter", owner="DaemonSet")]


@pytest.fixture
def kubernetes(work: Path, tmp_path: Path) -> Iterator[tuple[Cluster, Plays]]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed (package kubernetes-client)")
    with kubernetes_api.cluster(tmp_path, PODS) as (cluster, config):
        here = {
            **HERE,
            "torchtune_sys_drain": "kubernetes",
            "torchtune_sys_node": NODE,
            "torchtune_sys_drain_timeout": 5,
            "torchtune_sys_kubectl": ["kubectl", f"--kubeconfig={config}", "--context=prod", f"--cache-dir={tmp_path / 'cache'}"],
            "torchtune_sys_drain_arguments": ["--delete-emptydir-data"],
        }
        yield cluster, Plays(work, {"here": here})


def test_kubernetes_evicts_the_pods_and_gets_the_node_back(kubernetes: tuple[Cluster, Plays]) -> None:
    cluster, plays = kubernetes
    looked = role(plays, "drain", "--check")
    assert looked.status == 0 and cluster.asked == [] and cluster.takes_pods, looked.output
    drained = role(plays, "drain")
    assert drained.status == 0 and not cluster.takes_pods, drained.output
    assert list(cluster.pods) == ["exporter"], "what a DaemonSet started stays"
    again = role(plays, "drain")
    assert again.status == 0 and again.changed("here") == [], again.output
    stopped = role(plays, "give_back", torchtune_sys_stopped=True)
    assert stopped.failed("here") and not cluster.takes_pods, "a manual step is left: no green end"
    back = role(plays, "apply", **NOTHING_TO_DO)
    assert back.status == 0 and cluster.takes_pods and cluster.node["metadata"]["annotations"] == {}, back.output
    once_more = role(plays, "apply", **NOTHING_TO_DO)
    assert once_more.status == 0 and once_more.changed("here") == [], once_more.output


def test_a_node_that_somebody_cordoned_stays_so(kubernetes: tuple[Cluster, Plays]) -> None:
    cluster, plays = kubernetes
    cluster.node["spec"]["unschedulable"] = True
    for tasks in ("drain", "give_back"):
        played = role(plays, tasks)
        assert played.status == 0, played.output
    assert not cluster.takes_pods and list(cluster.pods) == ["exporter"]


@pytest.mark.parametrize(("why", "words"), [("empty-dir", "--delete-emptydir-data"), ("budget", "timeout reached")])
def test_pods_that_may_not_be_evicted_fail_the_host_before_anything_is_changed(
    why: str, words: str, kubernetes: tuple[Cluster, Plays]
) -> None:
    cluster, plays = kubernetes
    if why == "budget":
        cluster.pods["stays"] = pod("stays", budget=True)
    arguments = [] if why == "empty-dir" else ["--delete-emptydir-data"]
    played = role(plays, "drain", torchtune_sys_drain_arguments=arguments)
    (failure,) = played.failed("here")
    print(failure.result["stderr"])
    assert failure.task.endswith("Drain the node") and words in failure.result["stderr"]
    assert not cluster.takes_pods, "nothing new is started beside what could not be evicted"
    cluster.pods.clear()
    mended = role(plays, "drain")
    assert mended.status == 0, mended.output
    assert role(plays, "apply", **NOTHING_TO_DO).status == 0 and cluster.takes_pods, "the mark is of the run that failed"
