"""Limits of the session and of services, shared memory, huge pages and killed processes, from both sides of each mark (limits_services)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from limits_hosts import (
    BY_ID,
    DENIED,
    FAIL,
    MIB,
    NA,
    NOTHING,
    PASS,
    UNKNOWN,
    UNTOLD,
    changed,
    judged,
    limited,
    with_intent,
    without_gpus,
)

from torchtune_sys.model.actions import Needs, OwnedFile
from torchtune_sys.model.facts.limits import ServiceLimits, SessionLimit
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.rules.limits import services as limits_services

# --- services


def service(unit: str, hard: Any, soft: int | None = None) -> ServiceLimits:
    return ServiceLimits(unit=unit, pid=7, memlock=hard if isinstance(hard, Missing) else SessionLimit(soft=soft, hard=hard))


@pytest.mark.parametrize("unit", ["slurmd", "pbs", "lsfd", "jupyterhub", "ray"])
def test_services_that_start_jobs(healthy: Snapshot, unit: str) -> None:
    rule_id, seen = "service-memlock-too-low", with_intent(healthy)
    for hard, expected in ((128 * MIB, PASS), (128 * MIB - 1, FAIL), (None, PASS), (DENIED, UNKNOWN)):
        found = judged(changed(seen, "limits", services=(service("containerd", 1), service(unit, hard))), rule_id)
        assert [(item.subject, item.verdict) for item in found.evidence] == [(unit, expected)]
    both = (service(unit, DENIED), service("slurmd", 1), service("ray", None))
    assert [item.verdict for item in judged(changed(seen, "limits", services=both), rule_id).evidence] == [UNKNOWN, FAIL, PASS]


@pytest.mark.parametrize("rule_id", ["service-memlock-too-low", "container-memlock-too-low"])
@pytest.mark.parametrize(("services", "expected"), [((), NA), (NOTHING, NA), (DENIED, UNKNOWN), ((service("sshd", 1),), NA)])
def test_services_that_are_not_there(healthy: Snapshot, rule_id: str, services: Any, expected: Verdict) -> None:
    assert judged(changed(with_intent(healthy), "limits", services=services), rule_id).verdict is expected


@pytest.mark.parametrize(
    ("units", "blamed"),
    [
        (("kubelet", "containerd"), ["containerd"]),
        (("kubelet", "crio"), ["crio"]),
        (("k3s",), ["k3s"]),
        (("k3s-agent",), ["k3s-agent"]),
        (("rke2-agent",), ["rke2-agent"]),
        (("kubelet", "containerd", "crio"), ["containerd", "crio"]),
        (("containerd",), None),  # Docker alone: no pods
        (("kubelet",), None),
    ],
)
def test_runtimes_of_pods(healthy: Snapshot, units: tuple[str, ...], blamed: list[str] | None) -> None:
    seen = changed(with_intent(healthy), "limits", services=tuple(service(unit, 8 * MIB) for unit in units))
    found = judged(seen, "container-memlock-too-low")
    assert found.verdict is (NA if blamed is None else FAIL)
    assert [item.subject for item in found.evidence] == (blamed or [])


@pytest.mark.parametrize(
    ("propagates", "soft", "expected"),
    [
        (True, 128 * MIB - 1, FAIL),
        (True, 128 * MIB, PASS),
        (True, None, PASS),
        (False, 1, PASS),
        (NOTHING, 1, NA),
        (DENIED, 1, UNKNOWN),
    ],
)
def test_what_slurm_hands_on(healthy: Snapshot, propagates: Any, soft: int | None, expected: Verdict) -> None:
    seen = limited(changed(with_intent(healthy), "limits", slurm_propagates_memlock=propagates), "memlock", soft)
    assert judged(seen, "slurm-propagates-memlock").verdict is expected


def test_only_jobs_that_may_leave_the_host_need_locked_memory_in_services(healthy: Snapshot) -> None:
    low = limited(changed(healthy, "limits", services=(service("slurmd", 1),), slurm_propagates_memlock=True), "memlock", 1)
    for rule_id in ("service-memlock-too-low", "slurm-propagates-memlock"):
        for nodes, expected in ((None, FAIL), (2, FAIL), (1, NA)):
            assert judged(with_intent(low, nodes=nodes), rule_id).verdict is expected
        assert judged(changed(with_intent(low), "network", rdma=NOTHING), rule_id).verdict is NA
        assert judged(without_gpus(with_intent(low)), rule_id).verdict is NA
        assert judged(changed(with_intent(low), "system", container="docker"), rule_id).verdict is NA


@pytest.mark.parametrize("unit", ["slurmd", "pbs", "lsfd", "jupyterhub", "ray"])
def test_files_and_tasks_of_services_that_start_jobs(healthy: Snapshot, unit: str) -> None:
    seen = with_intent(healthy, ranks=1, threads=68)  # a hundred tasks, with the 32 of libraries

    def verdicts(rule_id: str, *facts: dict[str, Any]) -> list[tuple[str, Verdict]]:
        here = [msgspec.structs.replace(service(unit, None), **told) for told in facts]
        last = msgspec.structs.replace(
            service("slurmd", None), unit="ray", nofile=SessionLimit(soft=1024, hard=None), tasks_max=1e6
        )
        others = (service("containerd", 1), *here, last)
        found = judged(changed(seen, "limits", services=others), rule_id).evidence
        assert (found[-1].subject, found[-1].verdict) == ("ray", PASS)
        return [(item.subject, item.verdict) for item in found[:-1]]

    for hard, expected in ((8192, PASS), (8191, FAIL), (None, PASS)):
        assert verdicts("service-nofile-too-low", {"nofile": SessionLimit(soft=1024, hard=hard)}) == [(unit, expected)]
    assert verdicts("service-nofile-too-low", {"nofile": DENIED}) == [(unit, UNKNOWN)]
    for tasks, told in ((100.0, [PASS]), (99.0, [FAIL]), (DENIED, [UNKNOWN]), (math.inf, []), (UNTOLD, []), (NOTHING, [])):
        assert verdicts("service-tasks-too-few", {"tasks_max": tasks}) == [(unit, verdict) for verdict in told]


def test_services_whose_own_limits_bind_no_job(healthy: Snapshot) -> None:
    for tasks, expected in ((math.inf, NA), (UNTOLD, NA), (NOTHING, NA), (DENIED, UNKNOWN), (1.0, FAIL)):
        found = msgspec.structs.replace(service("slurmd", None), tasks_max=tasks)
        seen = changed(with_intent(healthy), "limits", services=(found,))
        assert judged(seen, "service-tasks-too-few").verdict is expected


def test_the_file_that_lifts_the_limit_of_a_service() -> None:
    (fix, *_) = BY_ID["container-memlock-too-low"].fix
    assert isinstance(fix, OwnedFile)
    assert fix == limits_services._drop_in("containerd")
    assert fix.path == "/etc/systemd/system/containerd.service.d/90-torchtune-sys.conf"  # systemd.unit(5), drop-ins
    assert fix.content.splitlines() == ["[Service]", "LimitMEMLOCK=infinity"]
    assert fix.needs is Needs.SERVICE_RESTART


def test_each_container_runtime_is_given_a_file_of_its_own(healthy: Snapshot) -> None:
    """K3s and RKE2 bring a containerd of their own: no unit containerd.service is there."""
    found = (service("k3s", None), service("rke2-agent", 8 << 20), service("containerd", None))
    evidence = judged(
        changed(with_intent(healthy), "limits", services=(service("kubelet", None), *found)), "container-memlock-too-low"
    ).evidence
    paths = [[action.path for action in item.fix if isinstance(action, OwnedFile)] for item in evidence]
    assert paths == [[], ["/etc/systemd/system/rke2-agent.service.d/90-torchtune-sys.conf"], []]
