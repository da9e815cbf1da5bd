"""Clocks, heat, memory modules and services, each mark from both sides (hardware)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hardware_hosts import BY_ID, DAY, DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, changed, judged

from torchtune_sys import engine
from torchtune_sys.model.facts.hardware import ServiceLoad, Zone
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

UNTOLD = Missing(Why.NOT_SUPPORTED, "test")
GIB = 1 << 30


def of_nodes(seen: Snapshot, nodes: int | None) -> Snapshot:
    return msgspec.structs.replace(seen, intent=Workload(nodes=nodes))


# --- clocks


@pytest.mark.parametrize(("nodes", "several"), [(None, False), (0, False), (1, False), (2, True), (3, True), (100, True)])
def test_one_of_the_two_rules_judges_the_clock(healthy: Snapshot, nodes: int | None, several: bool) -> None:
    for good in (True, False):
        seen = of_nodes(changed(healthy, "hardware", clock_synchronised=good), nodes)
        verdicts = [judged(seen, rule_id).verdict for rule_id in ("clock-not-synchronised", "clock-of-node-not-synchronised")]
        verdict = PASS if good else FAIL
        assert verdicts == ([NA, verdict] if several else [verdict, NA])


@pytest.mark.parametrize(
    ("facts", "synchronised", "daemon", "expected"),
    [
        ({}, True, "timesyncd", PASS),
        ({}, False, "timesyncd", FAIL),
        ({}, UNTOLD, "chronyd", PASS),  # chrony keeps it to itself
        ({}, DENIED, "timesyncd", UNKNOWN),
        ({}, False, "", FAIL),
        ({}, False, DENIED, UNKNOWN),
        ({}, False, NOTHING, NA),  # another namespace's units
        ({"init": "bash"}, False, "", NA),
        ({"init": DENIED}, False, "", UNKNOWN),
        ({"init": NOTHING}, False, "", NA),
        ({"hypervisor": "wsl1"}, False, "", NA),
        ({"hypervisor": "wsl2"}, False, "", NA),  # Windows keeps it
        ({"hypervisor": "kvm"}, False, "", FAIL),
        ({"hypervisor": DENIED}, False, "", FAIL),
    ],
)
def test_what_keeps_the_clock(
    healthy: Snapshot, facts: dict[str, Any], synchronised: Any, daemon: Any, expected: Verdict
) -> None:
    seen = changed(changed(healthy, "system", **facts), "hardware", clock_synchronised=synchronised, clock_daemon=daemon)
    found = judged(seen, "clock-not-synchronised")
    assert found.verdict is expected
    own = [action for evidence in found.evidence for action in evidence.fix]
    assert bool(own) is (expected is FAIL and bool(daemon)), "a second daemon would only stop the one that runs"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *((name, FAIL) for name in ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")),
        *((name, PASS) for name in ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen")),
        (NOTHING, NA),
        (DENIED, UNKNOWN),
    ],
)
def test_clocks_that_are_read_through_a_device(healthy: Snapshot, source: Any, expected: Verdict) -> None:
    assert judged(changed(healthy, "hardware", clocksource=source), "clocksource-slow").verdict is expected


# --- heat


@pytest.mark.parametrize(
    ("count", "uptime_s", "expected"),
    [
        (100, 3600.0, FAIL),  # a day at least
        (99, 3600.0, PASS),
        (100, DAY, FAIL),
        (999, 10 * DAY, PASS),
        (1000, 10 * DAY, FAIL),
        (10_000_000, 100_000 * DAY, FAIL),
        (9_999_999, 100_000 * DAY, PASS),
        (0, 3600.0, PASS),
        (NOTHING, 3600.0, NA),
        (DENIED, 3600.0, UNKNOWN),
        (5, DENIED, UNKNOWN),
    ],
)
def test_a_hundred_times_too_hot_per_day(healthy: Snapshot, count: Any, uptime_s: Any, expected: Verdict) -> None:
    seen = changed(changed(healthy, "system", uptime_s=uptime_s), "hardware", throttled=count)
    assert judged(seen, "cpu-throttled-for-heat").verdict is expected


@pytest.mark.parametrize(
    ("zones", "expected"),
    [
        ([(94.9, 100.0)], [PASS]),
        ([(95.0, 100.0)], [FAIL]),
        ([(30.0, 100.0), (99.0, 100.0), (30.0, 100.0)], [PASS, FAIL, PASS]),
        ([], []),
        (NOTHING, []),
    ],
)
def test_five_degrees_below_the_trip_point(healthy: Snapshot, zones: Any, expected: list[Verdict]) -> None:
    found = zones
    if isinstance(zones, list):
        found = tuple(Zone(name="x", celsius=celsius, limit_celsius=limit) for celsius, limit in zones)
    result = judged(changed(healthy, "hardware", zones=found), "temperature-near-limit")
    assert [item.verdict for item in result.evidence] == expected
    assert expected or result.verdict is NA


def test_zones_that_could_not_be_read(healthy: Snapshot) -> None:
    assert judged(changed(healthy, "hardware", zones=DENIED), "temperature-near-limit").verdict is UNKNOWN


# --- size


@pytest.mark.parametrize(
    ("cores", "memory", "cores_verdict", "memory_verdict"),
    [(8, 60 * GIB, PASS, PASS), (7, 60 * GIB, FAIL, PASS), (8, 60 * GIB - 1, PASS, FAIL), (4, 16 * GIB, FAIL, FAIL)],
)
def test_a_host_for_a_gpu(healthy: Snapshot, cores: int, memory: int, cores_verdict: Verdict, memory_verdict: Verdict) -> None:
    seen = changed(changed(healthy, "cpu", cores=cores), "memory", total_bytes=memory)
    found = judged(seen, "host-small-for-gpu-training").evidence
    assert [(item.subject, item.verdict) for item in found] == [("cores", cores_verdict), ("memory", memory_verdict)]
    assert [item.wanted for item in found] == [">= 8", ">= 60 GiB"]
    assert found[0].seen == str(cores) and found[1].seen == f"{memory / GIB:.0f} GiB"


# --- services


def service(cores: float = 0.0, memory: float = 0.0) -> ServiceLoad:
    """A unit that takes this share of a host of 1000 GiB."""
    return ServiceLoad(name="x", cores=cores, wakeups_per_s=1.0, rss_bytes=int(memory * 1000 * GIB), processes=1)


@pytest.mark.parametrize(
    ("services", "total", "expected"),
    [
        ((service(),), 1000 * GIB, [PASS]),
        ((service(cores=0.25),), 1000 * GIB, [FAIL]),
        ((service(cores=0.249),), 1000 * GIB, [PASS]),
        ((service(memory=0.05),), 1000 * GIB, [FAIL]),
        ((service(memory=0.0499),), 1000 * GIB, [PASS]),
        ((service(), service(cores=2), service(), service(memory=0.5)), 1000 * GIB, [FAIL, FAIL]),
        ((), 1000 * GIB, [PASS]),
        ((), DENIED, [PASS]),
        ((service(memory=0.5),), DENIED, UNKNOWN),  # of how much memory?
        ((service(cores=0.25, memory=0.5),), DENIED, [FAIL]),
        ((service(cores=0.25),), 0, [FAIL]),
        ((service(memory=0.5),), 0, [PASS]),
        (NOTHING, 1000 * GIB, NA),  # without --live
        (DENIED, 1000 * GIB, UNKNOWN),
    ],
)
def test_a_quarter_of_a_core_or_a_twentieth_of_memory(healthy: Snapshot, services: Any, total: Any, expected: Any) -> None:
    seen = changed(changed(healthy, "hardware", services=services), "memory", total_bytes=total)
    result = judged(seen, "service-takes-resources")
    assert (result.verdict if isinstance(expected, Verdict) else [item.verdict for item in result.evidence]) == expected


@pytest.mark.parametrize("mark", [5, 1, 0.1])
def test_of_an_unknown_memory_no_share_is_known_whatever_the_mark(healthy: Snapshot, mark: float) -> None:
    seen = changed(changed(healthy, "hardware", services=(service(memory=0.5),)), "memory", total_bytes=DENIED)
    rule = BY_ID["service-takes-resources"]
    (found,) = engine.judge(seen, (rule,), {rule.id: {"memory_percent": mark}})
    assert found.verdict is UNKNOWN


def test_services_of_a_host_of_whose_memory_nothing_is_known(healthy: Snapshot) -> None:
    seen = msgspec.structs.replace(changed(healthy, "hardware", services=(service(memory=0.5),)), memory=DENIED)
    assert judged(seen, "service-takes-resources").verdict is UNKNOWN
