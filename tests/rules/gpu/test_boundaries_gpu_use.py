"""GPUs from both sides of each mark: one that is left out stops no other, and each reading that failed is told from a good one (gpu_use)."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_hosts import (
    REFUSED,
    UNSAID,
    every,
    failed,
    gone,
    gpu_facts,
    having,
    healthy,
    judged,
    last,
    number,
    replace,
    verdict,
    with_session,
    with_system,
)

from torchtune_sys.model.facts.gpu import GpuProcess, LinkErrors
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Why

MIB = 1 << 20


@pytest.mark.parametrize(
    ("rule", "fact", "bad"),
    [
        ("gpu-ecc-uncorrectable", "ecc_uncorrected_volatile", 1),
        ("gpu-row-remap-failed", "rows_remap_failed", True),
        ("gpu-ecc-off", "ecc", False),
        ("gpu-thermal-throttle", "clock_event_reasons", 0x40),
        ("gpu-power-limit-lowered", "power_default_mw", 800_000),
        ("gpu-power-limit-lowered", "power_limit_mw", 600_000),
        ("exclusive-compute-mode", "compute_mode", "exclusive-process"),
        ("compute-mode-prohibited", "compute_mode", "prohibited"),
        ("mig-mode-limits", "mig", True),
        ("gpu-sram-threshold-exceeded", "sram_threshold_exceeded", True),
        ("gpu-inforom-corrupted", "inforom_valid", False),
        ("gpu-fabric-registration-failed", "fabric_status", "error"),
        ("gpu-fabric-unhealthy", "fabric_health", ("degraded bandwidth",)),
        ("nvlink-errors", "nvlink_errors", (LinkErrors(link=2, replay=1),)),
    ],
)
def test_one_reading_of_each_gpu(rule: str, fact: str, bad: Any) -> None:
    host = healthy()
    assert verdict(rule, host) == "pass"
    assert failed(rule, last(host, **{fact: bad})) == [7]
    for left_out in (gone(Why.NOT_SUPPORTED), gone(Why.ABSENT)):
        assert verdict(rule, every(host, **{fact: left_out})) == "na"
        assert verdict(rule, having(host, {fact: left_out})) == "pass"
        assert failed(rule, last(having(host, {fact: left_out}), **{fact: bad})) == [7]
    for refused in (gone(Why.DENIED), gone(Why.TIMEOUT), gone(Why.NOT_RECORDED)):
        assert verdict(rule, having(host, {fact: refused})) == "unknown"
        assert verdict(rule, having(host, {fact: refused, "lost": True})) == "pass"  # a lost one has a rule of its own
        assert verdict(rule, every(host, **{fact: refused, "lost": True})) == "na"
        assert failed(rule, last(having(host, {fact: refused}), **{fact: bad})) == [7]


@pytest.mark.parametrize(
    ("limit", "default", "lowered", "half"),
    [
        (693_000, 700_000, "pass", "pass"),
        (692_999, 700_000, "fail", "pass"),
        (385_001, 700_000, "fail", "pass"),
        (385_000, 700_000, "pass", "fail"),
        (700_000, 700_000, "pass", "pass"),
        (800_000, 700_000, "pass", "pass"),
    ],
)
def test_power_limits(limit: int, default: int, lowered: str, half: str) -> None:
    host = having(healthy(), {"power_limit_mw": limit, "power_default_mw": default})
    assert (verdict("gpu-power-limit-lowered", host), verdict("gpu-power-limit-half", host)) == (lowered, half)


# Memory that others hold


def used(mib: int, *processes: tuple[Any, Any]) -> dict[str, Any]:
    listed = tuple(
        GpuProcess(pid=at, user=user, used_bytes=size * MIB if isinstance(size, int) else size)
        for at, (user, size) in enumerate(processes)
    )
    return {"memory_used_bytes": mib * MIB, "processes": listed}


MEMORY = "gpu-memory-in-use"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (used(2048), "fail"),
        (used(2047), "pass"),
        ({**used(2048), "processes": UNSAID}, "fail"),
        ({**used(2047), "processes": UNSAID}, "pass"),
        (used(4600, ("ubuntu", 2048), ("ubuntu", 2048)), "pass"),
        (used(4600, ("ubuntu", 2048), ("eve", 2048)), "fail"),
        (used(9000, ("ubuntu", UNSAID), ("eve", 4000)), "pass"),  # whose it is cannot be told
        (used(9000, ("eve", UNSAID)), "fail"),
        (used(3000, ("ubuntu", 9000)), "pass"),
        ({"memory_used_bytes": UNSAID}, "pass"),
        ({"memory_used_bytes": REFUSED}, "unknown"),
        ({**used(9000), "lost": True}, "pass"),
    ],
)
def test_memory_that_is_taken(first: dict[str, Any], expected: str) -> None:
    assert verdict(MEMORY, having(healthy(), first)) == expected
    assert failed(MEMORY, last(having(healthy(), first), **used(5000)))[-1] == 7
    report = replace(having(healthy(), first), gpu=replace(gpu_facts(having(healthy(), first)), source="report"))
    assert verdict(MEMORY, report) == "na"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (used(2047), "pass"),
        (used(2048), "unknown"),
        ({**used(2048), "processes": REFUSED}, "unknown"),
        (used(2048, ("eve", 2048)), "fail"),
    ],
)
def test_a_container_hides_whose_memory_it_is(first: dict[str, Any], expected: str) -> None:
    host = with_system(healthy(), container="docker")
    assert verdict(MEMORY, having(host, first)) == expected
    assert failed(MEMORY, last(having(host, first), **used(5000, ("eve", 5000))))[-1] == 7


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (used(2047), "pass"),
        (used(60_000), "unknown"),  # page cache, or a process that is not seen
        (used(60_000, ("ubuntu", 100)), "pass"),
        (used(60_000, ("eve", 100)), "pass"),
        (used(60_000, ("eve", 4000)), "fail"),
        (used(60_000, ("eve", UNSAID)), "unknown"),
    ],
)
def test_the_kernels_pages_on_a_gpu_that_is_a_numa_node_are_nobodys(first: dict[str, Any], expected: str) -> None:
    host = having(healthy(), first)
    nodes = tuple(replace(node, gpu_memory=True) for node in host.numa.nodes)
    assert verdict(MEMORY, replace(host, numa=replace(host.numa, nodes=nodes))) == expected


def test_a_user_without_a_name_is_a_number() -> None:
    host = having(healthy(), used(5000, ("1000", 5000)))
    assert verdict(MEMORY, host) == "fail"
    nameless = with_session(host, user=gone(Why.ABSENT))
    assert verdict(MEMORY, nameless) == "pass"
    assert verdict(MEMORY, with_session(nameless, uid=1001)) == "fail"
    assert verdict(MEMORY, with_session(nameless, uid=REFUSED)) == "unknown"
    assert verdict(MEMORY, with_session(host, user=REFUSED)) == "unknown"


# Ranks, and memory that hosts share


def test_an_instance_of_a_gpu_is_none_that_ranks_share() -> None:
    host = replace(number(healthy(), 1), intent=Workload(ranks=2))
    assert verdict("several-ranks-on-one-gpu", host) == "fail"
    named = with_session(host, env={"CUDA_VISIBLE_DEVICES": "MIG-4d6b4dbb-1bb8-5e3a-8c4b-5a6d0f1f4b1e"})
    assert verdict("several-ranks-on-one-gpu", named) == "fail"
    sliced = judged("several-ranks-on-one-gpu", having(host, {"mig": True}))
    assert sliced.verdict is Verdict.NA and sliced.note == "mig-mode-limits tells of it"
    assert verdict("several-ranks-on-one-gpu", with_session(host, env={"CUDA_VISIBLE_DEVICES": "0"})) == "fail"
