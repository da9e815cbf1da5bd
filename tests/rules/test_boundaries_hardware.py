"""Clocks, heat, memory modules and services, each mark from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.facts.hardware import MemoryController, MemoryDevice, ServiceLoad, Zone
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import hardware

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
UNTOLD = Missing(Why.NOT_SUPPORTED, "test")
BY_ID = {rule.id: rule for rule in hardware.RULES}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA
GIB = 1 << 30
DAY = 86_400.0


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def judged(seen: Snapshot, rule_id: str) -> Result:
    return engine.judge(seen, (BY_ID[rule_id],))[0]


def of_nodes(seen: Snapshot, nodes: int | None) -> Snapshot:
    return msgspec.structs.replace(seen, intent=Intent(nodes=nodes))


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
        ({"init": DENIED}, False, "", NA),
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
    assert judged(seen, "clock-not-synchronised").verdict is expected


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


# --- memory modules


def module(gib: float = 64, rated: int | None = 4800, configured: int | None = 4800) -> MemoryDevice:
    return MemoryDevice(locator="A1", bank="0", size_mib=int(gib * 1024), rated_mts=rated, configured_mts=configured)


def with_modules(seen: Snapshot, modules: Any, sockets: Any = 2) -> Snapshot:
    return changed(changed(seen, "cpu", sockets=sockets), "hardware", memory_devices=modules)


EMPTY = module(0, None, None)


@pytest.mark.parametrize(
    ("modules", "sockets", "expected", "seen"),
    [
        ((module(),) * 16, 2, PASS, "16 of 64 GiB"),
        ((*(module(),) * 16, EMPTY, EMPTY), 2, PASS, "16 of 64 GiB"),
        ((module(),) * 15, 2, FAIL, "15 modules for 2 sockets"),
        ((module(),) * 15, 1, PASS, "15 of 64 GiB"),
        ((module(),) * 15, 0, PASS, "15 of 64 GiB"),  # a processor that tells no sockets
        ((module(), module(32)), 2, FAIL, "sizes of 32 GiB, 64 GiB"),
        ((module(), module(32), module(0.5)), 2, FAIL, "sizes of 0.5 GiB, 32 GiB, 64 GiB; 3 modules for 2 sockets"),
        ((EMPTY,), 2, NA, ""),
        ((), 2, NA, ""),
        (NOTHING, 2, NA, ""),
        (DENIED, 2, UNKNOWN, ""),
        ((module(),) * 16, DENIED, UNKNOWN, ""),
    ],
)
def test_modules_on_each_socket(healthy: Snapshot, modules: Any, sockets: Any, expected: Verdict, seen: str) -> None:
    result = judged(with_modules(healthy, modules, sockets), "memory-modules-uneven")
    assert result.verdict is expected
    assert [item.seen for item in result.evidence] == ([seen] if seen else [])


@pytest.mark.parametrize(
    ("modules", "expected", "seen"),
    [
        ((module(64, 4800, 4800),) * 2, PASS, "4800 MT/s"),
        ((module(64, 4800, 4656),) * 2, PASS, "4656 MT/s"),  # 97 %: one step is a few per cent
        ((module(64, 4800, 4655),) * 2, FAIL, "4655 MT/s"),
        ((module(64, 4800, 4800), module(64, 4800, 4400)), FAIL, "4400 MT/s"),
        ((module(64, None, 4400), module(64, 4800, None)), NA, ""),
        ((module(64, None, 4400), module(64, 4800, None), module(64, 4800, 4800)), PASS, "4800 MT/s"),
        ((module(64, 0, 4400), module(64, 4800, 0)), NA, ""),
        (DENIED, UNKNOWN, ""),
    ],
)
def test_the_speed_of_modules(healthy: Snapshot, modules: Any, expected: Verdict, seen: str) -> None:
    result = judged(with_modules(healthy, modules), "memory-below-rated-speed")
    assert result.verdict is expected
    assert [item.seen for item in result.evidence] == ([seen] if seen else [])


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"hypervisor": ""}, FAIL),
        ({"hypervisor": DENIED}, FAIL),
        ({"hypervisor": "kvm"}, NA),  # its modules are made up
        ({"container": "docker"}, NA),
    ],
)
def test_modules_of_real_machines_only(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    seen = with_modules(changed(healthy, "system", **facts), (module(64, 4800, 4400),) * 15)
    assert judged(seen, "memory-below-rated-speed").verdict is expected
    assert judged(seen, "memory-modules-uneven").verdict is expected


def counters(*counts: tuple[Any, Any]) -> tuple[MemoryController, ...]:
    return tuple(MemoryController(name=f"mc{n}", corrected=one, uncorrected=two) for n, (one, two) in enumerate(counts))


@pytest.mark.parametrize(
    ("found", "uptime_s", "expected"),
    [
        (counters((49, 0)), 3600.0, [PASS]),
        (counters((50, 0)), 3600.0, [FAIL]),
        (counters((50, 0)), DAY, [FAIL]),
        (counters((499, 0), (500, 0)), 10 * DAY, [PASS, FAIL]),
        (counters((4_999_999, 0), (5_000_000, 0)), 100_000 * DAY, [PASS, FAIL]),
        (counters((DENIED, 0), (50, 0)), DAY, [UNKNOWN, FAIL]),
        ((), DAY, NA),
        (NOTHING, DAY, NA),
        (DENIED, DAY, UNKNOWN),
        (counters((50, 0)), DENIED, UNKNOWN),
    ],
)
def test_fifty_corrected_errors_per_day(healthy: Snapshot, found: Any, uptime_s: Any, expected: Any) -> None:
    seen = changed(changed(healthy, "system", uptime_s=uptime_s), "hardware", memory_controllers=found)
    result = judged(seen, "memory-errors-counted")
    assert (result.verdict if isinstance(expected, Verdict) else [item.verdict for item in result.evidence]) == expected


def logged(seen: Snapshot, kind: str, days_ago: float) -> Snapshot:
    at = 30 * DAY - days_ago * DAY
    events = (KernelEvent(kind="boot", first_s=0.0, last_s=0.0), KernelEvent(kind=kind, first_s=at, last_s=at))
    return msgspec.structs.replace(seen, kernel=KernelFacts(events=events, source="/dev/kmsg", now_s=30 * DAY))


def test_one_uncorrected_error_is_too_many_unless_the_log_names_it(healthy: Snapshot) -> None:
    rule_id = "memory-uncorrected-counted"
    seen = changed(healthy, "hardware", memory_controllers=counters((0, 0), (0, 1), (0, DENIED)))
    for blind in (msgspec.structs.replace(seen, kernel=DENIED), changed(seen, "kernel", events=DENIED)):
        assert [item.verdict for item in judged(blind, rule_id).evidence] == [PASS, FAIL, UNKNOWN]
    assert judged(logged(seen, "memory-uncorrected", 6.9), rule_id).verdict is NA
    assert judged(logged(seen, "memory-uncorrected", 7.1), rule_id).verdict is FAIL
    assert judged(logged(seen, "memory-corrected", 1), rule_id).verdict is FAIL
    assert judged(changed(seen, "hardware", memory_controllers=()), rule_id).verdict is NA


@pytest.mark.parametrize(
    ("kind", "subject", "who", "errors", "days_ago", "judged_here"),
    [
        ("memory-corrected", "MC0", "DIMM_A1", 50, 0.5, ["mc1"]),
        ("memory-corrected", "MC1", "", 50, 0.5, ["mc0"]),
        ("memory-corrected", "MC0", "DIMM_A1", 49, 0.5, ["mc0", "mc1"]),  # too few in the log, whatever was counted since boot
        ("memory-corrected", "MC0", "DIMM_A1", 50, 1.5, ["mc0", "mc1"]),
        ("memory-uncorrected", "MC0", "DIMM_A1", 50, 0.5, ["mc0", "mc1"]),
        ("memory-corrected", "MC7", "DIMM_A1", 50, 0.5, ["mc0", "mc1"]),
    ],
)
def test_a_controller_of_whose_module_the_log_tells(
    healthy: Snapshot, kind: str, subject: str, who: str, errors: int, days_ago: float, judged_here: list[str]
) -> None:
    seen = changed(changed(healthy, "system", uptime_s=DAY), "hardware", memory_controllers=counters((50, 0), (50, 0)))
    at = 30 * DAY - days_ago * DAY
    told = KernelEvent(kind=kind, subject=subject, who=who, code=errors, first_s=at, last_s=at)
    few = KernelEvent(kind="memory-corrected", subject="MC1", who="DIMM_Z1", code=1, first_s=at, last_s=at)
    log = KernelFacts(events=(few, told), source="/dev/kmsg", now_s=30 * DAY)
    found = judged(msgspec.structs.replace(seen, kernel=log), "memory-errors-counted")
    assert [item.subject for item in found.evidence] == judged_here


def test_a_log_that_tells_of_all_controllers_or_was_not_read(healthy: Snapshot) -> None:
    seen = changed(changed(healthy, "system", uptime_s=DAY), "hardware", memory_controllers=counters((50, 0)))
    told = KernelEvent(kind="memory-corrected", subject="MC0", who="A1", code=50, first_s=None, last_s=None)
    rule_id = "memory-errors-counted"
    assert judged(msgspec.structs.replace(seen, kernel=KernelFacts(events=(told,), source="/dev/kmsg")), rule_id).verdict is NA
    for blind in (msgspec.structs.replace(seen, kernel=DENIED), changed(seen, "kernel", events=DENIED)):
        assert judged(blind, rule_id).verdict is FAIL
    boxed = changed(changed(seen, "system", container="docker"), "kernel", events=NOTHING)
    assert judged(boxed, rule_id).verdict is FAIL


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


# --- memory channels


DESKTOP = "Intel(R) Core(TM) i9-13900K"
"""Two channels."""
CLEAR, VAGUE = ("DIMM_A1", "DIMM_A2", "DIMM_B1", "DIMM_B2"), ("DIMM 1", "DIMM 2", "DIMM 3", "DIMM 4")


def slots(names: tuple[str, ...], *fitted: int, form: str = "DIMM") -> tuple[MemoryDevice, ...]:
    return tuple(
        MemoryDevice(locator=name, bank="", size_mib=65536 * (number in fitted), form=form) for number, name in enumerate(names)
    )


def found_in(*places: Any) -> tuple[MemoryController, ...]:
    """Controllers that found modules on these channels."""
    told = [p if isinstance(p, Missing) else tuple(f"channel {channel} slot 0" for channel in p) for p in places]
    return tuple(MemoryController(name=f"mc{n}", corrected=0, uncorrected=0, places=place) for n, place in enumerate(told))


EDAC, TABLE = "/sys/devices/system/edac/mc", "/sys/firmware/dmi/tables/DMI"


@pytest.mark.parametrize(
    ("devices", "controllers", "sockets", "expected", "seen", "source"),
    [
        (slots(CLEAR, 0, 2), (), 1, PASS, "2 in use", TABLE),
        (slots(CLEAR, 0, 1), (), 1, FAIL, "1 of 2, with 2 modules", TABLE),
        (slots(CLEAR, 0, 1), found_in("01"), 1, PASS, "2 in use", TABLE),  # the kernel knows better than the board's names
        (slots(CLEAR, 0, 1), found_in("0"), 1, FAIL, "1 of 2, with 2 modules", TABLE),
        (slots(CLEAR, 0, 1, 2), (), 1, PASS, "2 in use", TABLE),
        (slots(CLEAR, 0), (), 1, FAIL, "1 modules: at most 1 of 2", TABLE),
        (slots(CLEAR[:1], 0), (), 1, PASS, "1 in use", TABLE),  # the board has no more slots
        (slots(CLEAR, 0, 1, 2, 3), (), 1, PASS, "2 in use", TABLE),
        (slots(VAGUE, 0, 1), (), 1, UNKNOWN, "", ""),
        (slots(VAGUE, 0, 1), DENIED, 1, UNKNOWN, "", ""),
        (slots(VAGUE, 0, 1), found_in("0"), 1, FAIL, "1 of 2, with 2 modules", EDAC),
        (slots(VAGUE, 0, 1), found_in("01"), 1, PASS, "2 in use", EDAC),
        (slots(VAGUE, 0, 1), found_in("012"), 1, UNKNOWN, "", ""),  # more channels than there are
        (slots(VAGUE, 0, 1), found_in("0", DENIED), 1, UNKNOWN, "", ""),
        (slots(VAGUE, 0, 1, 2, 3), (), 1, PASS, "2 in use", TABLE),
        (slots(CLEAR, 0, 1, form="soldered"), (), 1, NA, "", ""),
        (slots(CLEAR, 0, form="soldered"), found_in("0"), 1, NA, "", ""),
        (slots(CLEAR), (), 1, NA, "", ""),
        (slots(CLEAR, 0, 2), (), 0, NA, "", ""),
        (slots(CLEAR, 0, 2), (), DENIED, UNKNOWN, "", ""),
        (DENIED, (), 1, UNKNOWN, "", ""),
        (DENIED, found_in("0"), 1, FAIL, "1 of 2", EDAC),
        (DENIED, found_in("01"), 1, PASS, "2 in use", EDAC),
        (DENIED, found_in("01"), 2, UNKNOWN, "", ""),  # the other processor's controller has no driver
        (DENIED, found_in("01", "0"), 2, FAIL, "3 of 4 (2 on each of 2 processors)", EDAC),
        (DENIED, found_in("01", "01"), 2, PASS, "4 in use", EDAC),
        (DENIED, found_in("01", DENIED, "01"), 2, UNKNOWN, "", ""),
        (NOTHING, (), 1, NA, "", ""),
        (NOTHING, found_in("0"), 1, FAIL, "1 of 2", EDAC),
    ],
)
def test_channels_without_a_module(
    healthy: Snapshot, devices: Any, controllers: Any, sockets: Any, expected: Verdict, seen: str, source: str
) -> None:
    host = changed(changed(healthy, "cpu", sockets=sockets, model=DESKTOP), "hardware", memory_devices=devices)
    result = judged(changed(host, "hardware", memory_controllers=controllers), "memory-channels-empty")
    assert result.verdict is expected
    assert [(item.seen, item.source) for item in result.evidence] == ([(seen, source)] if seen else [])
    if devices == slots(VAGUE, 0, 1) and expected is UNKNOWN:
        assert result.why_unknown is not None and result.why_unknown.why is Why.UNPARSED


def test_channels_of_processors_that_nobody_listed(healthy: Snapshot) -> None:
    seen = changed(healthy, "hardware", memory_devices=slots(CLEAR, 0))
    for model, expected in ((DESKTOP, FAIL), ("Neoverse-V2", NA), (DENIED, UNKNOWN)):
        assert judged(changed(seen, "cpu", sockets=1, model=model), "memory-channels-empty").verdict is expected


def test_modules_that_are_too_few_are_told_of_once(healthy: Snapshot) -> None:
    three = slots(("A1", "A2", "B1", "B2", "C1", "C2", "D1", "D2"), 0, 1, 2)
    seen = changed(healthy, "hardware", memory_devices=three, memory_controllers=())
    known = changed(seen, "cpu", sockets=2, model=DESKTOP)
    assert [judged(known, rule_id).verdict for rule_id in ("memory-channels-empty", "memory-modules-uneven")] == [FAIL, PASS]
    for model in ("Neoverse-V2", DENIED):
        assert judged(changed(seen, "cpu", sockets=2, model=model), "memory-modules-uneven").verdict is FAIL
