"""Clocks, heat, memory modules and services, each mark from both sides (hardware_memory)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hardware_hosts import DAY, DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, changed, judged

from torchtune_sys.model.facts.hardware import MemoryController, MemoryDevice
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

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
    named = judged(logged(seen, "memory-uncorrected", 6.9), rule_id)
    assert [item.verdict for item in named.evidence] == [PASS, NA, UNKNOWN] and named.verdict is UNKNOWN
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
    assert [item.subject for item in found.evidence if item.verdict is FAIL] == judged_here


def test_a_log_that_tells_of_all_controllers_or_was_not_read(healthy: Snapshot) -> None:
    seen = changed(changed(healthy, "system", uptime_s=DAY), "hardware", memory_controllers=counters((50, 0)))
    told = KernelEvent(kind="memory-corrected", subject="MC0", who="A1", code=50, first_s=None, last_s=None)
    rule_id = "memory-errors-counted"
    assert judged(msgspec.structs.replace(seen, kernel=KernelFacts(events=(told,), source="/dev/kmsg")), rule_id).verdict is NA
    for blind in (msgspec.structs.replace(seen, kernel=DENIED), changed(seen, "kernel", events=DENIED)):
        assert judged(blind, rule_id).verdict is FAIL
    boxed = changed(changed(seen, "system", container="docker"), "kernel", events=NOTHING)
    assert judged(boxed, rule_id).verdict is FAIL


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
    assert [judged(known, rule_id).verdict for rule_id in ("memory-channels-empty", "memory-modules-uneven")] == [FAIL, NA]
    for model in ("Neoverse-V2", DENIED):
        assert judged(changed(seen, "cpu", sockets=2, model=model), "memory-modules-uneven").verdict is FAIL
