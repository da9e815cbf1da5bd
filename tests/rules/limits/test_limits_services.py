"""Locked memory where jobs start: both sides of the threshold, and the hosts that nobody should be warned of."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys.model.actions import Advice, Limit
from torchtune_sys.model.rule import Verdict
from torchtune_sys.rules import CATALOGUE

MIB = 1 << 20


def service(unit: str, hard: int | str, pid: int = 4100) -> dict[str, Any]:
    return {
        f"/sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs": f"{pid}\n",
        f"/proc/{pid}/comm": {"pbs": "pbs_mom", "crio": "crio"}.get(unit, unit) + "\n",
        f"/proc/{pid}/limits": f"Max locked memory         65536                {hard}            bytes     \n",
    }


def verdict(rule: str, files: dict[str, Any], nodes: int | None = None, **sections: Any) -> Verdict:
    return judge(load("healthy", intent={"nodes": nodes}, files=files, **sections))[rule].verdict


@pytest.mark.parametrize(
    ("hard", "wanted"),
    [(65536, Verdict.FAIL), (128 * MIB - 1, Verdict.FAIL), (128 * MIB, Verdict.PASS), ("unlimited", Verdict.PASS)],
)
@pytest.mark.parametrize("unit", ["slurmd", "pbs", "jupyterhub"])
def test_the_hard_limit_decides_since_slurm_and_jobs_raise_the_soft_one(unit: str, hard: int | str, wanted: Verdict) -> None:
    assert verdict("service-memlock-too-low", service(unit, hard)) is wanted
    assert verdict("service-memlock-too-low", service(unit, hard), nodes=1) is Verdict.NA


def test_no_rdma_no_finding() -> None:
    down = {f"/sys/class/infiniband/mlx5_{number}/ports/1/state": "1: DOWN" for number in range(8)}
    assert verdict("service-memlock-too-low", {**service("slurmd", 65536), **down}) is Verdict.NA


@pytest.mark.parametrize(
    ("runtime", "hard", "kubelet", "wanted"),
    [
        ("containerd", 8 * MIB, True, Verdict.FAIL),
        ("crio", 8 * MIB, True, Verdict.FAIL),
        ("containerd", "unlimited", True, Verdict.PASS),
        ("containerd", 128 * MIB - 1, True, Verdict.FAIL),
        ("containerd", 128 * MIB, True, Verdict.PASS),
        ("containerd", 8 * MIB, False, Verdict.NA),
    ],
)
def test_docker_has_an_option_and_kubernetes_has_none(runtime: str, hard: int | str, kubelet: bool, wanted: Verdict) -> None:
    files = {**service(runtime, hard), **(service("kubelet", "unlimited", 4200) if kubelet else {})}
    assert verdict("container-memlock-too-low", files) is wanted


@pytest.mark.parametrize(
    ("conf", "soft", "wanted"),
    [
        ("", 8 * MIB, Verdict.FAIL),
        ("", 128 * MIB - 1, Verdict.FAIL),
        ("", 128 * MIB, Verdict.PASS),
        ("", None, Verdict.PASS),
        ("PropagateResourceLimitsExcept=MEMLOCK", 8 * MIB, Verdict.PASS),
    ],
)
def test_slurm_hands_on_what_the_shell_has(conf: str, soft: int | None, wanted: Verdict) -> None:
    files = {"/etc/slurm/slurm.conf": f"ClusterName=example\n{conf}\n"}
    assert verdict("slurm-propagates-memlock", files, answers={"rlimits": {"memlock": [soft, None]}}) is wanted
    assert verdict("slurm-propagates-memlock", {}, answers={"rlimits": {"memlock": [soft, None]}}) is Verdict.NA


def test_tasks_are_counted_as_the_sessions_are() -> None:
    """Eight ranks with four workers: 8 x (1 + 32 + 16) tasks."""

    def tasks(most: str) -> Verdict:
        files = service("ray", "unlimited") | {"/sys/fs/cgroup/system.slice/ray.service/pids.max": most}
        return verdict("service-tasks-too-few", files)

    assert (tasks("391\n"), tasks("392\n"), tasks("max\n")) == (Verdict.FAIL, Verdict.PASS, Verdict.NA)


def test_each_limit_says_what_to_do_where_limits_conf_does_not_reach() -> None:
    limits = [rule for rule in CATALOGUE if any(isinstance(action, Limit) for action in rule.fix)]
    assert len(limits) >= 8
    assert [rule.id for rule in limits if not any(isinstance(action, Advice) for action in rule.fix)] == []
