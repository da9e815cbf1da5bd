"""Limits of the session and of services, shared memory, huge pages and killed processes, from both sides of each mark."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.actions import Needs, OwnedFile
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.facts.limits import Limit, Service
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import limits, limits_services, memory
from torchtune_sys.rules.limits_seen import below, count
from torchtune_sys.rules.limits_tasks import tasks_needed

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
UNTOLD = Missing(Why.NOT_SUPPORTED, "test")
BY_ID = {rule.id: rule for rule in (*limits.RULES, *memory.RULES)}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA
MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def with_intent(seen: Snapshot, **intent: Any) -> Snapshot:
    return msgspec.structs.replace(seen, intent=Intent(**intent))


def without_gpus(seen: Snapshot) -> Snapshot:
    return changed(changed(seen, "gpu", devices=()), "driver", nvidia_devices=(), amd_devices=())


def judged(seen: Snapshot, rule_id: str) -> Result:
    return engine.judge(seen, (BY_ID[rule_id],))[0]


def limited(seen: Snapshot, name: str, soft: int | None, hard: int | None = None) -> Snapshot:
    assert not isinstance(seen.limits, Missing)
    return changed(seen, "limits", limits={**seen.limits.limits, name: Limit(soft=soft, hard=hard)})


# --- limits of the session


@pytest.mark.parametrize(
    ("rule_id", "name", "enough", "also"),
    [
        ("memlock-limit-too-low", "memlock", 128 * MIB, {}),
        ("memlock-limit-finite", "memlock", 16 * GIB, {}),
        ("address-space-limit", "as", 16 * TIB, {}),
        ("file-size-limit", "fsize", TIB, {}),
        ("data-segment-limit", "data", 1000 * GIB, {}),
        ("nofile-soft-limit-low", "nofile", 256, {"workers": 4}),  # 64 for each worker
        ("nofile-soft-limit-low", "nofile", 4096, {"workers": 1000}),
        ("nproc-limit-too-low", "nproc", 1024, {"ranks": 1, "threads": 1}),
    ],
)
def test_soft_limits_at_the_mark(healthy: Snapshot, rule_id: str, name: str, enough: int, also: dict[str, Any]) -> None:
    seen = changed(with_intent(healthy, **also), "memory", total_bytes=1000 * GIB)
    seen = changed(seen, "limits", ipc_lock=False)
    assert judged(limited(seen, name, enough), rule_id).verdict is PASS
    assert judged(limited(seen, name, enough - 1), rule_id).verdict is FAIL
    assert judged(limited(seen, name, enough - 1, enough * 9), rule_id).verdict is FAIL
    assert judged(limited(seen, name, None), rule_id).verdict is PASS


def test_the_hard_limit_on_files(healthy: Snapshot) -> None:
    for hard, expected in ((8192, PASS), (8191, FAIL), (None, PASS)):
        assert judged(limited(healthy, "nofile", 1024, hard), "nofile-limit-too-low").verdict is expected


@pytest.mark.parametrize(("holds", "expected"), [(True, NA), (False, FAIL), (DENIED, FAIL)])
def test_a_capability_lifts_the_limit_on_locked_memory(healthy: Snapshot, holds: Any, expected: Verdict) -> None:
    seen = limited(changed(healthy, "limits", ipc_lock=holds), "memlock", 8 * MIB)
    assert judged(seen, "memlock-limit-too-low").verdict is expected


@pytest.mark.parametrize(
    ("call", "soft", "low", "finite"),
    [
        ("ibv_reg_mr", 64 * GIB, FAIL, NA),  # whatever the number says, it was too low
        ("ibv_reg_mr", None, PASS, PASS),
        ("", 64 * GIB, PASS, PASS),
        (DENIED, 64 * GIB, PASS, PASS),
        (DENIED, 1, FAIL, NA),
    ],
)
def test_a_call_that_is_known_to_have_failed(
    healthy: Snapshot, call: Any, soft: int | None, low: Verdict, finite: Verdict
) -> None:
    seen = limited(changed(healthy, "limits", pinning_failed=call, ipc_lock=False), "memlock", soft)
    assert judged(seen, "memlock-limit-too-low").verdict is low
    assert judged(seen, "memlock-limit-finite").verdict is finite
    bare = without_gpus(seen)
    assert judged(bare, "memlock-limit-too-low").verdict is (low if call == "ibv_reg_mr" else NA)


def test_a_session_of_whose_limits_nothing_is_known(healthy: Snapshot) -> None:
    for rule_id in ("memlock-limit-too-low", "memlock-limit-finite"):
        assert judged(msgspec.structs.replace(healthy, limits=DENIED), rule_id).verdict is UNKNOWN
        assert judged(without_gpus(msgspec.structs.replace(healthy, limits=DENIED)), rule_id).verdict is NA


def test_limits_in_words() -> None:
    assert (count(None), count(0), count(1024)) == ("unlimited", "0", "1024")
    assert not below(None, 5) and not below(5, 5) and below(4, 5)


@pytest.mark.parametrize(
    ("remove", "slurm", "expected"),
    [
        (True, True, FAIL),
        (False, True, PASS),
        (True, False, NA),
        (NOTHING, True, NA),
        (NOTHING, DENIED, NA),
        (DENIED, True, UNKNOWN),
        (True, DENIED, UNKNOWN),
    ],
)
def test_logind_under_slurm(healthy: Snapshot, remove: Any, slurm: Any, expected: Verdict) -> None:
    assert judged(changed(healthy, "limits", remove_ipc=remove, slurm=slurm), "logind-removes-ipc").verdict is expected


@pytest.mark.parametrize(
    ("intent", "cores", "tasks"),
    [
        ({"ranks": 1, "threads": 4}, 32, 36),
        ({"ranks": 1}, 32, 64),  # a single process takes a thread per core
        ({"ranks": 2}, 32, 66),  # torchrun gives several ranks one each
        ({"ranks": 3}, 32, 99),
        ({"ranks": 1}, DENIED, 33),
        ({"ranks": 2, "threads": 4, "workers": 8}, 32, 136),
        ({"ranks": 1, "threads": 0, "workers": 1}, 32, 36),
        ({"ranks": 1, "threads": 1, "workers": 0}, 32, 33),
    ],
)
def test_tasks_that_training_takes(healthy: Snapshot, intent: dict[str, Any], cores: Any, tasks: int) -> None:
    assert tasks_needed(changed(with_intent(healthy, **intent), "cpu", cores=cores)) == tasks


def test_tasks_on_a_host_of_whose_processor_nothing_is_known(healthy: Snapshot) -> None:
    seen = msgspec.structs.replace(with_intent(healthy, ranks=1), cpu=DENIED)
    assert tasks_needed(seen) == 33


@pytest.mark.parametrize(
    ("most", "taken", "expected"),
    [
        (133.0, 100, PASS),
        (132.0, 100, FAIL),
        (33.0, DENIED, PASS),
        (32.0, DENIED, FAIL),
        (math.inf, 100, NA),
        (DENIED, 1, UNKNOWN),
    ],
)
def test_tasks_that_the_cgroup_has_room_for(healthy: Snapshot, most: Any, taken: Any, expected: Verdict) -> None:
    seen = changed(with_intent(healthy, ranks=1, threads=1), "limits", pids_max=most, pids_current=taken)
    assert judged(seen, "cgroup-pids-limit").verdict is expected


# --- services


def service(unit: str, hard: Any, soft: int | None = None) -> Service:
    return Service(unit=unit, pid=7, memlock=hard if isinstance(hard, Missing) else Limit(soft=soft, hard=hard))


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
        last = msgspec.structs.replace(service("slurmd", None), unit="ray", nofile=Limit(soft=1024, hard=None), tasks_max=1e6)
        others = (service("containerd", 1), *here, last)
        found = judged(changed(seen, "limits", services=others), rule_id).evidence
        assert (found[-1].subject, found[-1].verdict) == ("ray", PASS)
        return [(item.subject, item.verdict) for item in found[:-1]]

    for hard, expected in ((8192, PASS), (8191, FAIL), (None, PASS)):
        assert verdicts("service-nofile-too-low", {"nofile": Limit(soft=1024, hard=hard)}) == [(unit, expected)]
    assert verdicts("service-nofile-too-low", {"nofile": DENIED}) == [(unit, UNKNOWN)]
    for tasks, told in ((100.0, [PASS]), (99.0, [FAIL]), (DENIED, [UNKNOWN]), (math.inf, []), (UNTOLD, []), (NOTHING, [])):
        assert verdicts("service-tasks-too-few", {"tasks_max": tasks}) == [(unit, verdict) for verdict in told]


def test_services_whose_own_limits_bind_no_job(healthy: Snapshot) -> None:
    for tasks, expected in ((math.inf, NA), (UNTOLD, NA), (NOTHING, NA), (DENIED, UNKNOWN), (1.0, FAIL)):
        found = msgspec.structs.replace(service("slurmd", None), tasks_max=tasks)
        seen = changed(with_intent(healthy), "limits", services=(found,))
        assert judged(seen, "service-tasks-too-few").verdict is expected


# --- memory


@pytest.mark.parametrize(
    ("devices", "on_bus", "expected"),
    [
        (DENIED, ("0000:61:00.0",), UNKNOWN),
        (DENIED, DENIED, UNKNOWN),
        (DENIED, (), NA),  # an AMD GPU, say
        (DENIED, NOTHING, NA),
        (None, (), PASS),
        (None, NOTHING, PASS),
        (None, DENIED, PASS),
    ],
)
def test_memory_of_gpus_that_are_not_nvidias_is_not_read(healthy: Snapshot, devices: Any, on_bus: Any, expected: Verdict) -> None:
    seen = changed(healthy, "driver", nvidia_devices=on_bus, amd_devices=("0000:03:00.0",))
    if devices is not None:
        seen = changed(seen, "gpu", devices=devices)
    assert judged(seen, "host-memory-below-gpu-memory").verdict is expected


@pytest.mark.parametrize(
    ("amounts", "total", "limit", "expected"),
    [
        ([80 * GIB, 80 * GIB], 144 * GIB, math.inf, PASS),  # nine tenths: firmware and kernel keep some
        ([80 * GIB, 80 * GIB], 144 * GIB - 1, math.inf, FAIL),
        ([80 * GIB, 80 * GIB], 1000 * GIB, float(144 * GIB - 1), FAIL),
        ([80 * GIB, UNTOLD], 72 * GIB, math.inf, PASS),
        ([80 * GIB, UNTOLD], 72 * GIB - 1, math.inf, FAIL),
        ([UNTOLD, UNTOLD], 1, math.inf, NA),  # shared with the host
        ([80 * GIB, DENIED], 1000 * GIB, math.inf, UNKNOWN),
        ([NOTHING], 1000 * GIB, math.inf, UNKNOWN),
    ],
)
def test_as_much_memory_as_the_gpus_have(
    healthy: Snapshot, amounts: list[Any], total: int, limit: float, expected: Verdict
) -> None:
    assert not isinstance(healthy.gpu, Missing) and not isinstance(healthy.gpu.devices, Missing)
    gpus = zip(healthy.gpu.devices, amounts, strict=False)
    devices = tuple(msgspec.structs.replace(gpu, memory_total_bytes=amount) for gpu, amount in gpus)
    seen = changed(changed(healthy, "gpu", devices=devices), "memory", total_bytes=total, cgroup_limit_bytes=limit)
    assert judged(seen, "host-memory-below-gpu-memory").verdict is expected


@pytest.mark.parametrize(
    ("limit", "far", "tight"),
    [
        (250.0 * GIB, PASS, PASS),
        (250.0 * GIB - 1, FAIL, PASS),
        (16.0 * GIB, FAIL, PASS),
        (16.0 * GIB - 1, FAIL, FAIL),
        (math.inf, NA, NA),
    ],
)
def test_what_the_cgroup_leaves(healthy: Snapshot, limit: float, far: Verdict, tight: Verdict) -> None:
    seen = changed(with_intent(healthy, ranks=4), "memory", total_bytes=1000 * GIB, cgroup_limit_bytes=limit)
    assert judged(seen, "cgroup-memory-far-below-host").verdict is far
    assert judged(seen, "cgroup-memory-tight").verdict is tight


@pytest.mark.parametrize(
    ("reserved", "free", "expected"),
    [
        (250 * GIB + 1, 250 * GIB + 1, FAIL),
        (250 * GIB, 250 * GIB, PASS),
        (250 * GIB, DENIED, PASS),  # a quarter at most: whoever uses it
        (500 * GIB, 250 * GIB, PASS),
        (500 * GIB, 250 * GIB + 1, FAIL),
        (500 * GIB, DENIED, UNKNOWN),
        (0, 0, PASS),
        (NOTHING, DENIED, NA),
        (DENIED, 0, UNKNOWN),
    ],
)
def test_huge_pages_that_lie_idle(healthy: Snapshot, reserved: Any, free: Any, expected: Verdict) -> None:
    facts = {"hugepages_reserved_bytes": reserved, "hugepages_free_bytes": free, "total_bytes": 1000 * GIB}
    result = judged(changed(healthy, "memory", **facts), "hugepages-hoard-memory")
    assert result.verdict is expected
    if reserved == 250 * GIB:
        assert "idle" not in result.evidence[0].seen


def test_where_no_huge_page_may_be_reserved_none_is(healthy: Snapshot) -> None:
    rule = BY_ID["hugepages-hoard-memory"]
    for reserved, expected in ((0, PASS), (1, FAIL)):
        seen = changed(healthy, "memory", hugepages_reserved_bytes=reserved, hugepages_free_bytes=reserved)
        assert engine.judge(seen, (rule,), {rule.id: {"max_share": 0}})[0].verdict is expected


@pytest.mark.parametrize(
    ("kills", "events", "expected"),
    [
        (0, [], PASS),
        (1, [], FAIL),
        (3, [("oom-kill", 2), ("oom-kill", 1)], NA),  # the log names them all
        (4, [("oom-kill", 2), ("oom-kill", 1)], FAIL),
        (1, [("crash", 5)], FAIL),
        (0, [("oom-kill", 5)], PASS),
        (1, DENIED, FAIL),
        (1, None, FAIL),
        (DENIED, [], UNKNOWN),
    ],
)
def test_kills_since_boot(healthy: Snapshot, kills: Any, events: Any, expected: Verdict) -> None:
    found = tuple(KernelEvent(kind=kind, count=times) for kind, times in events) if isinstance(events, list) else events
    kernel = DENIED if found is None else KernelFacts(events=found, source="/dev/kmsg")
    seen = msgspec.structs.replace(changed(healthy, "memory", oom_kills=kills), kernel=kernel)
    assert judged(seen, "oom-kills-since-boot").verdict is expected


# --- /dev/shm


def with_shm(seen: Snapshot, size: Any, free: Any = 0, filesystem: Any = "tmpfs") -> Snapshot:
    return changed(seen, "memory", shm_size_bytes=size, shm_free_bytes=free, shm_filesystem=filesystem)


@pytest.mark.parametrize(
    ("intent", "gpus", "asked"),
    [
        ({"workers": 1}, 0, True),
        ({"ranks": 2}, 0, True),
        ({"ranks": 3}, 0, True),
        ({"ranks": 1}, 0, False),
        ({}, 0, False),
        ({}, 1, True),
        ({}, 8, True),
        ({"ranks": 1, "workers": 0}, 8, None),  # one process
        ({"ranks": 0, "workers": 0}, 8, None),
        ({"ranks": 2, "workers": 0}, 0, True),
        ({"ranks": 2, "workers": 0}, 8, True),
        ({"ranks": 1, "workers": 2}, 0, True),
        ({"workers": 0}, 8, True),  # as many ranks as GPUs
    ],
)
def test_who_needs_shared_memory(healthy: Snapshot, intent: dict[str, Any], gpus: int, asked: bool | None) -> None:
    assert not isinstance(healthy.gpu, Missing) and not isinstance(healthy.gpu.devices, Missing)
    seen = changed(with_intent(without_gpus(healthy), **intent), "gpu", devices=healthy.gpu.devices[:gpus])
    small, tight = with_shm(seen, 64 * MIB), with_shm(seen, 1024 * MIB - 1)
    assert judged(small, "dev-shm-too-small").verdict is (FAIL if asked else NA)
    assert judged(small, "dev-shm-small").verdict is (NA if asked is not False else FAIL)
    assert judged(tight, "dev-shm-small").verdict is (NA if asked is None else FAIL)
    assert judged(tight, "dev-shm-too-small").verdict is (NA if asked is None else PASS)
    assert judged(with_shm(seen, 1024 * MIB), "dev-shm-small").verdict is (NA if asked is None else PASS)
    without = with_shm(seen, DENIED, DENIED, NOTHING)
    assert judged(without, "dev-shm-too-small").verdict is NA
    wanted = asked is not None and (gpus > 0 or bool(intent.get("workers")))
    assert judged(without, "dev-shm-small").verdict is (FAIL if wanted else NA)


@pytest.mark.parametrize(
    ("size", "free", "expected"),
    [
        (64 * MIB, 64 * MIB, FAIL),
        (64 * MIB + 1, 64 * MIB, PASS),
        (DENIED, 0, UNKNOWN),
    ],
)
def test_a_containers_default(healthy: Snapshot, size: Any, free: Any, expected: Verdict) -> None:
    assert judged(with_shm(healthy, size, free), "dev-shm-too-small").verdict is expected
    assert judged(with_shm(healthy, size, free, DENIED), "dev-shm-too-small").verdict is expected


@pytest.mark.parametrize(
    ("size", "free", "filesystem", "expected"),
    [
        (8 * GIB, 512 * MIB, "tmpfs", PASS),
        (8 * GIB, 512 * MIB - 1, "tmpfs", FAIL),
        (1024 * MIB, 0, "tmpfs", NA),  # its size is the question
        (1024 * MIB + 1, 0, "tmpfs", FAIL),
        (8 * GIB, DENIED, "tmpfs", UNKNOWN),
        (DENIED, DENIED, NOTHING, NA),
        (DENIED, DENIED, "tmpfs", UNKNOWN),
    ],
)
def test_room_in_shared_memory(healthy: Snapshot, size: Any, free: Any, filesystem: Any, expected: Verdict) -> None:
    assert judged(with_shm(healthy, size, free, filesystem), "dev-shm-full").verdict is expected


def test_the_file_that_lifts_the_limit_of_a_service() -> None:
    (fix, *_) = BY_ID["container-memlock-too-low"].fix
    assert isinstance(fix, OwnedFile)
    assert fix == limits_services._drop_in("containerd")
    assert fix.path == "/etc/systemd/system/containerd.service.d/90-torchtune-sys.conf"  # systemd.unit(5), drop-ins
    assert fix.content.splitlines() == ["[Service]", "LimitMEMLOCK=infinity"]
    assert fix.needs is Needs.SERVICE_RESTART
