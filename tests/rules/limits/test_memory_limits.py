"""Memory and limits: boundaries, and who they do not concern."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.facts.network import RdmaPort
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import limits, memory
from torchtune_sys.rules.limits import tasks

NOTHING = Missing(Why.ABSENT, "test")
MIB, GIB = 1 << 20, 1 << 30


def said(seen: Snapshot, rule_id: str) -> Result:
    return next(result for result in engine.judge(seen, memory.RULES + limits.RULES) if result.rule.id == rule_id)


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def limited(seen: Snapshot, **pairs: tuple[int | None, int | None]) -> Snapshot:
    assert not isinstance(seen.limits, Missing)
    made = {name.rstrip("_"): SessionLimit(soft=soft, hard=hard) for name, (soft, hard) in pairs.items()}
    return changed(seen, "limits", limits={**seen.limits.limits, **made})


def bare(seen: Snapshot) -> Snapshot:
    """The same host without a GPU."""
    without = changed(seen, "driver", nvidia_devices=(), amd_devices=())
    return msgspec.structs.replace(without, gpu=NOTHING)


@pytest.mark.parametrize(
    ("size", "error", "warning"),
    [(64 * MIB, "fail", "na"), (64 * MIB + 1, "pass", "fail"), (GIB - 1, "pass", "fail"), (GIB, "pass", "pass")],
)
def test_sizes_of_dev_shm(healthy: Snapshot, size: int, error: str, warning: str) -> None:
    seen = changed(healthy, "memory", shm_size_bytes=size, shm_free_bytes=size)
    assert [said(seen, name).verdict.value for name in ("dev-shm-too-small", "dev-shm-small")] == [error, warning]


def test_without_workers_and_with_one_rank_dev_shm_is_no_question(healthy: Snapshot) -> None:
    seen = msgspec.structs.replace(changed(healthy, "memory", shm_size_bytes=MIB), intent=Workload(ranks=1, workers=0))
    assert [said(seen, name).verdict.value for name in ("dev-shm-too-small", "dev-shm-small")] == ["na", "na"]


def test_a_container_without_gpu_is_warned_only(healthy: Snapshot) -> None:
    seen = msgspec.structs.replace(bare(changed(healthy, "memory", shm_size_bytes=64 * MIB)), intent=Workload())
    assert [said(seen, name).verdict.value for name in ("dev-shm-too-small", "dev-shm-small")] == ["na", "fail"]


def test_a_container_without_gpu_fails_if_workers_are_asked_for(healthy: Snapshot) -> None:
    seen = msgspec.structs.replace(bare(changed(healthy, "memory", shm_size_bytes=64 * MIB)), intent=Workload(workers=2))
    assert said(seen, "dev-shm-too-small").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("total", "available", "verdict"),
    [(1000 * GIB, 20 * GIB, "pass"), (100 * GIB, 9 * GIB, "fail"), (100 * GIB, 11 * GIB, "pass"), (16 * GIB, GIB, "fail")],
)
def test_available_memory(healthy: Snapshot, total: int, available: int, verdict: str) -> None:
    seen = changed(healthy, "memory", total_bytes=total, available_bytes=available)
    assert said(seen, "memory-available-low").verdict.value == verdict


def test_the_cgroups_limit_counts_as_the_hosts_memory(healthy: Snapshot) -> None:
    seen = changed(healthy, "memory", cgroup_limit_bytes=float(100 * GIB), cgroup_limit_source="/sys/fs/cgroup/x/memory.max")
    found = said(seen, "host-memory-below-gpu-memory")
    assert (found.verdict, found.evidence[0].source) == (Verdict.FAIL, "/sys/fs/cgroup/x/memory.max")


@pytest.mark.parametrize(("gib", "verdict"), [(31, "fail"), (32, "pass")])
def test_a_limit_is_measured_by_the_ranks(healthy: Snapshot, gib: int, verdict: str) -> None:
    seen = changed(healthy, "memory", cgroup_limit_bytes=float(gib * GIB), cgroup_limit_source="x")
    assert said(seen, "cgroup-memory-tight").verdict.value == verdict


@pytest.mark.parametrize(("free", "verdict"), [(512, "fail"), (100, "pass")])
def test_huge_pages_in_use_are_not_wasted(healthy: Snapshot, free: int, verdict: str) -> None:
    seen = changed(healthy, "memory", hugepages_reserved_bytes=512 * GIB, hugepages_free_bytes=free * GIB)
    assert said(seen, "hugepages-hoard-memory").verdict.value == verdict


def test_a_kernel_without_huge_pages_is_not_told_to_switch_them_on(healthy: Snapshot) -> None:
    assert said(changed(healthy, "memory", thp=NOTHING), "thp-never").verdict is Verdict.NA


@pytest.mark.parametrize(
    ("soft", "low", "finite"),
    [
        (64 << 10, "fail", "na"),
        (8 * MIB, "fail", "na"),
        (128 * MIB, "pass", "fail"),
        (16 * GIB - 1, "pass", "fail"),
        (16 * GIB, "pass", "pass"),
        (None, "pass", "pass"),
    ],
)
def test_locked_memory(healthy: Snapshot, soft: int | None, low: str, finite: str) -> None:
    seen = limited(healthy, memlock=(soft, None))  # the hard limit helps nobody: verbs look at the soft one
    assert [said(seen, name).verdict.value for name in ("memlock-limit-too-low", "memlock-limit-finite")] == [low, finite]


def test_a_capability_lifts_the_limit_on_locked_memory(healthy: Snapshot) -> None:
    seen = changed(limited(healthy, memlock=(0, 0)), "limits", ipc_lock=True)
    assert said(seen, "memlock-limit-too-low").verdict is Verdict.NA


def test_locked_memory_is_no_question_without_rdma(healthy: Snapshot) -> None:
    seen = changed(limited(healthy, memlock=(0, 0)), "network", rdma=NOTHING)
    assert [said(seen, name).verdict.value for name in ("memlock-limit-too-low", "memlock-limit-finite")] == ["na", "na"]


@pytest.mark.parametrize(
    ("gbps", "nodes", "expected"), [(25.0, None, "na"), (25.0, 1, "na"), (25.0, 2, "fail"), (200.0, None, "fail")]
)
def test_an_ordinary_adapter_needs_no_locked_memory_where_one_host_trains(
    healthy: Snapshot, gbps: float, nodes: int | None, expected: str
) -> None:
    """ConnectX-4 Lx, E810 and the adapters of cloud machines are RDMA devices that nothing opens there."""
    assert not isinstance(healthy.network, Missing) and not isinstance(healthy.network.rdma, Missing)
    ports = [
        msgspec.structs.replace(device, ports=tuple(_ethernet(port, gbps) for port in device.ports))
        for device in healthy.network.rdma
    ]
    seen = changed(limited(healthy, memlock=(8 * MIB, 8 * MIB)), "network", rdma=tuple(ports))
    seen = msgspec.structs.replace(seen, intent=msgspec.structs.replace(seen.intent, nodes=nodes))
    assert said(seen, "memlock-limit-too-low").verdict.value == expected


def _ethernet(port: RdmaPort, gbps: float) -> RdmaPort:
    return msgspec.structs.replace(port, link_layer="Ethernet", rate_gbps=gbps)


def test_rdma_that_cannot_be_seen_leaves_it_open(healthy: Snapshot) -> None:
    seen = changed(limited(healthy, memlock=(0, 0)), "network", rdma=Missing(Why.DENIED, "/sys/class/infiniband"))
    assert said(seen, "memlock-limit-too-low").verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("pair", "verdict"), [((1024, 4096), "fail"), ((1024, 524288), "pass"), ((None, None), "pass")])
def test_the_hard_limit_on_files_decides(healthy: Snapshot, pair: tuple[int | None, int | None], verdict: str) -> None:
    assert said(limited(healthy, nofile=pair), "nofile-limit-too-low").verdict.value == verdict


@pytest.mark.parametrize(("workers", "verdict"), [(None, "na"), (0, "na"), (8, "pass"), (16, "pass"), (17, "fail")])
def test_the_soft_limit_on_files_is_measured_by_the_workers(healthy: Snapshot, workers: int | None, verdict: str) -> None:
    seen = msgspec.structs.replace(limited(healthy, nofile=(1024, 524288)), intent=Workload(ranks=8, workers=workers))
    assert said(seen, "nofile-soft-limit-low").verdict.value == verdict


def test_root_is_not_bound_by_the_limit_on_processes(healthy: Snapshot) -> None:
    seen = limited(healthy, nproc=(10, 10))
    assert said(seen, "nproc-limit-too-low").verdict is Verdict.FAIL
    assert said(changed(seen, "session", uid=0), "nproc-limit-too-low").verdict is Verdict.NA


def test_processes_are_counted_over_ranks_threads_and_workers(healthy: Snapshot) -> None:
    seen = msgspec.structs.replace(healthy, intent=Workload(ranks=8, threads=64, workers=100))
    assert tasks.tasks_needed(seen) == 8 * (64 + 32 + 400)
    assert said(limited(seen, nproc=(3967, None)), "nproc-limit-too-low").verdict is Verdict.FAIL
    assert said(limited(seen, nproc=(3968, None)), "nproc-limit-too-low").verdict is Verdict.PASS


@pytest.mark.parametrize(("taken", "verdict"), [(1664, "pass"), (1665, "fail")])
def test_room_in_the_cgroup(healthy: Snapshot, taken: int, verdict: str) -> None:
    seen = changed(healthy, "limits", pids_max=2048.0, pids_current=taken, pids_source="/sys/fs/cgroup/a/pids.max")
    seen = msgspec.structs.replace(seen, intent=Workload(ranks=8, threads=8, workers=2))  # 8 * (8 + 32 + 8) = 384
    assert said(seen, "cgroup-pids-limit").verdict.value == verdict


def test_a_limited_address_space_matters_with_gpus_and_where_it_is_tiny(healthy: Snapshot) -> None:
    seen = limited(healthy, as_=(1 << 40, 1 << 40))
    assert said(seen, "address-space-limit").verdict is Verdict.FAIL
    assert said(bare(seen), "address-space-limit").verdict is Verdict.NA
    for gib, expected in ((8, Verdict.NA), (4, Verdict.FAIL)):
        assert said(bare(limited(healthy, as_=(gib << 30, gib << 30))), "address-space-limit").verdict is expected
    assert said(limited(healthy, as_=(None, None)), "address-space-limit").verdict is Verdict.PASS


def test_logind_is_asked_on_slurm_nodes_only() -> None:
    assert said(load("healthy"), "logind-removes-ipc").verdict is Verdict.NA
    found = said(
        load("logind-removes-ipc.fail", files={"/etc/systemd/logind.conf": "[Login]\nRemoveIPC=yes\n"}), "logind-removes-ipc"
    )
    assert (found.verdict, found.evidence[0].source) == (Verdict.FAIL, "/etc/systemd/logind.conf:2")
