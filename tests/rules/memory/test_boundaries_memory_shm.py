"""Limits of the session and of services, shared memory, huge pages and killed processes, from both sides of each mark (memory_shm)."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from limits_hosts import (
    BY_ID,
    DENIED,
    FAIL,
    GIB,
    MIB,
    NA,
    NOTHING,
    PASS,
    UNKNOWN,
    UNTOLD,
    changed,
    judged,
    with_intent,
    without_gpus,
)

from conftest import judge, load
from torchtune_sys import engine
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, need

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
        (64 * MIB, 0, "tmpfs", NA),  # its size is the question
        (64 * MIB + 1, 0, "tmpfs", FAIL),
        (600 * MIB, 300 * MIB, "tmpfs", PASS),  # half of a small one
        (600 * MIB, 300 * MIB - 1, "tmpfs", FAIL),
        (8 * GIB, DENIED, "tmpfs", UNKNOWN),
        (DENIED, DENIED, NOTHING, NA),
        (DENIED, DENIED, "tmpfs", UNKNOWN),
    ],
)
def test_room_in_shared_memory(healthy: Snapshot, size: Any, free: Any, filesystem: Any, expected: Verdict) -> None:
    assert judged(with_shm(healthy, size, free, filesystem), "dev-shm-full").verdict is expected


def test_shared_memory_that_is_closed_is_wrong_on_a_host_without_gpus() -> None:
    """Mounted by hand without mode=1777: each DataLoader with workers fails, though nobody said that there will be one."""
    seen = load("typical/laptop-cpu")
    closed = msgspec.structs.replace(seen, memory=msgspec.structs.replace(need(seen.memory), shm_writable=False))
    assert judge(closed)["dev-shm-not-writable"].verdict is Verdict.FAIL
    assert judge(seen)["dev-shm-not-writable"].verdict is Verdict.PASS


@pytest.mark.parametrize(("size", "expected"), [(64 * MIB + 1, FAIL), (1024 * MIB - 1, FAIL), (1024 * MIB, UNKNOWN)])
def test_a_small_one_is_small_whatever_its_file_system(healthy: Snapshot, size: int, expected: Verdict) -> None:
    """ds_report tells the size alone."""
    seen = with_shm(without_gpus(healthy), size, filesystem=DENIED)
    assert judged(seen, "dev-shm-small").verdict is expected
