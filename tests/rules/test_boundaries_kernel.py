"""What counts in the kernel's log: kinds of messages, the window, how many are too many, and what other facts overrule."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why
from torchtune_sys.rules import kernel, kernel_seen

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
BY_ID = {rule.id: rule for rule in kernel.RULES}
DAY = 86_400.0
NOW = 30 * DAY
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA


def event(kind: str, subject: str = "x", at: float | None = NOW - 60, **more: Any) -> KernelEvent:
    """A message of this kind a minute ago."""
    return KernelEvent(kind=kind, subject=subject, **{"text": f"{kind} of {subject}", "first_s": at, "last_s": at, **more})


def log(*events: KernelEvent, **facts: Any) -> KernelFacts:
    return KernelFacts(
        **{"events": events, "source": "/dev/kmsg", "from_s": 0.0, "now_s": NOW, "booted": 1.7e9, "whole": True, **facts}
    )


def with_log(seen: Snapshot, *events: KernelEvent, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, kernel=log(*events, **facts))


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def judged(seen: Snapshot, rule_id: str) -> Result:
    return engine.judge(seen, (BY_ID[rule_id],))[0]


def verdict(seen: Snapshot, rule_id: str, *events: KernelEvent, **facts: Any) -> Verdict:
    return judged(with_log(seen, *events, **facts), rule_id).verdict


def subjects(seen: Snapshot, rule_id: str, *events: KernelEvent, **facts: Any) -> list[str]:
    """What the rule blames."""
    return [item.subject for item in judged(with_log(seen, *events, **facts), rule_id).evidence if item.verdict is FAIL]


KINDS = {
    "pcie-uncorrected-errors": ("aer-uncorrected", "pcie-contained"),
    "pcie-slot-link-down": ("slot-down",),
    "network-adapter-fault": ("nic-hot", "module-fault", "efa-fault", "mlx5-fault"),
    "nvme-errors-logged": ("nvme-reset", "nvme-dead"),
    "disk-errors-logged": ("disk-io", "disk-medium", "fs-error", "fs-read-only"),
    "oom-kill-logged": ("oom-kill",),
    "memory-uncorrected-errors": ("memory-uncorrected", "machine-check"),
    "native-crash-logged": ("crash",),
    "file-server-not-responding": ("server-lost",),
}
"""Rules that one message fails, and the kinds of it; the last of several is the worst."""


@pytest.mark.parametrize(("rule_id", "kind"), [(rule_id, kind) for rule_id, kinds in KINDS.items() for kind in kinds])
def test_one_message_is_enough(healthy: Snapshot, rule_id: str, kind: str) -> None:
    assert verdict(healthy, rule_id, event(kind)) is FAIL
    (finding,) = judged(with_log(healthy, event(kind)), rule_id).evidence
    assert finding.verdict is FAIL  # and no word beside it that all was well


@pytest.mark.parametrize("rule_id", KINDS)
def test_other_messages_and_those_of_long_ago_are_none(healthy: Snapshot, rule_id: str) -> None:
    others = [event(kind) for kinds in KINDS.values() for kind in kinds if kind not in KINDS[rule_id]]
    old = [event(kind, at=NOW - 8 * DAY) for kind in KINDS[rule_id]]
    for events in (others, old, []):
        (finding,) = judged(with_log(healthy, *events), rule_id).evidence
        assert finding.verdict is PASS


@pytest.mark.parametrize(
    ("rule_id", "kinds"),
    [
        ("network-adapter-fault", ("nic-hot", "module-fault", "efa-fault", "mlx5-fault")),
        ("nvme-errors-logged", ("nvme-reset", "nvme-dead")),
        ("disk-errors-logged", ("disk-io", "disk-medium", "fs-error", "fs-read-only")),
    ],
)
def test_of_several_messages_the_worst_is_shown(healthy: Snapshot, rule_id: str, kinds: tuple[str, ...]) -> None:
    for worst in range(1, len(kinds)):
        (finding,) = judged(with_log(healthy, *map(event, reversed(kinds[: worst + 1]))), rule_id).evidence
        assert finding.seen.startswith(f"{kinds[worst]} of x, {worst + 1} times")


# --- the log itself


@pytest.mark.parametrize(
    ("container", "why", "expected"),
    [
        ("docker", Why.ABSENT, NA),
        ("docker", Why.NOT_SUPPORTED, NA),
        ("docker", Why.DENIED, UNKNOWN),
        ("", Why.ABSENT, UNKNOWN),
        ("", Why.NOT_SUPPORTED, UNKNOWN),
        (DENIED, Why.ABSENT, UNKNOWN),
        (None, Why.ABSENT, UNKNOWN),  # nothing at all is known of the system
    ],
)
def test_a_log_that_was_not_read(healthy: Snapshot, container: Any, why: Why, expected: Verdict) -> None:
    seen = (
        msgspec.structs.replace(healthy, system=DENIED) if container is None else changed(healthy, "system", container=container)
    )
    assert verdict(seen, "nvme-errors-logged", events=Missing(why, "test")) is expected


@pytest.mark.parametrize(
    ("last", "days", "facts", "inside"),
    [
        (NOW - 7 * DAY, 7, {}, True),
        (NOW - 7 * DAY - 1, 7, {}, False),
        (NOW - DAY, 1, {}, True),
        (NOW - DAY - 1, 1, {}, False),
        (None, 1, {}, True),
        (1.0, 1, {"now_s": DENIED}, True),
        (1.7e9, 1, {}, True),  # a line of a calendar's clock in a log since boot: nobody knows how old it is
        (1.0, 1, {"now_s": 1.7e9}, True),
        (1.7e9 - 2 * DAY, 1, {"now_s": 1.7e9}, False),
        (1.0, 7, {"source": "report"}, True),  # somebody chose what is in it
        (1.0, 30, {"source": "report"}, True),
        (1.0, 6, {"source": "report"}, False),  # unless it counts by the day
    ],
)
def test_the_window(last: float | None, days: float, facts: dict[str, Any], inside: bool) -> None:
    assert kernel_seen.in_window(log(**facts), event("crash", at=last), {"days": days}) is inside


def test_clocks_are_told_by_their_size() -> None:
    assert kernel_seen.same_clock(1.0, 60e6) and kernel_seen.same_clock(60e6, 1.0) and kernel_seen.same_clock(1.6e9, 1.7e9)
    assert not kernel_seen.same_clock(1.0, 60e6 + 1) and not kernel_seen.same_clock(60e6 + 1, 60e6)


@pytest.mark.parametrize(
    ("kind", "speaks"),
    [
        *((kind, True) for kind in ("xid", "sxid", "api-mismatch", "iommu-fault", "module-refused", "gpu-lost", "gsp-firmware")),
        *((kind, False) for kind in ("driver-load", "boot", "oom-kill", "mlx5-fault")),
    ],
)
def test_a_log_that_speaks_of_a_gpu_is_judged_on_any_host(healthy: Snapshot, kind: str, speaks: bool) -> None:
    bare = changed(changed(healthy, "gpu", devices=()), "driver", nvidia_devices=())
    seen = with_log(bare, event("oom-kill"), event(kind))
    if speaks:
        kernel_seen.nvidia_log(seen)
    else:
        with pytest.raises(NotApplicable):
            kernel_seen.nvidia_log(seen)
    for unread in (with_log(bare, events=DENIED), msgspec.structs.replace(bare, kernel=DENIED)):
        with pytest.raises(NotApplicable):
            kernel_seen.nvidia_log(unread)
    kernel_seen.nvidia_log(with_log(healthy, events=DENIED))  # the machine has GPUs


# --- times and counts in words


def test_days_are_those_of_the_calendar() -> None:
    epoch = datetime.date(1970, 1, 1)
    for day in range(160_000):
        date = epoch + datetime.timedelta(days=day)
        assert kernel_seen._civil(day) == (date.year, date.month, date.day)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (299, "299 s"),
        (300, "5 min"),
        (6000, "100 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (36_000_000, "10000 h"),
    ],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert kernel_seen.when(log(booted=DENIED), [event("crash", at=seconds)]) == f", {text} after boot"


@pytest.mark.parametrize("booted", [1.7e9, 1.6e9 + 59, 1.75e9 + 3599])
@pytest.mark.parametrize("time", [0.0, 59.0, 3600.0, 86_399.0, 1e6])
def test_times_in_utc_where_the_boot_time_is_known(booted: float, time: float) -> None:
    clock = datetime.datetime.fromtimestamp(booted + time, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    assert kernel_seen.when(log(booted=booted), [event("crash", at=time)]) == f", {clock}"


@pytest.mark.parametrize("booted", [0.0, DENIED])
def test_times_by_the_logs_own_clock(booted: Any) -> None:
    def told(time: float) -> str:
        return kernel_seen.when(log(booted=booted), [event("crash", at=time)])

    assert told(1.7e9) == ", 2023-11-14 22:13"  # of a zone that the log does not tell
    for month, name in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1):
        stamp = datetime.datetime(1972, month, 8, 17, 59, tzinfo=datetime.timezone.utc).timestamp()
        assert told(stamp) == f", {name} 8 17:59"  # syslog's stamps have no year
    assert told(1e300) == told(1e11)  # what a broken clock says


def test_how_often_and_from_when_to_when() -> None:
    def told(*events: KernelEvent) -> str:
        return kernel_seen.when(log(booted=0.0), list(events))

    assert told(event("crash", at=None)) == ""
    assert told(event("crash", at=None, count=2)) == ", 2 times"
    assert told(event("crash", at=None), event("crash", at=None, count=1999)) == ", 2,000 times"
    assert told(event("crash", at=5, last_s=9, count=3)) == ", 3 times from 5 s after boot to 9 s after boot"
    assert told(event("crash", at=8), event("crash", at=2)) == ", 2 times from 2 s after boot to 8 s after boot"
    assert told(event("crash", at=5, last_s=None)) == ", 5 s after boot"


@pytest.mark.parametrize(
    ("words", "width", "text"),
    [("abcde", 5, "abcde"), ("abcdef", 5, "abcd…"), ("abc def", 5, "abc…"), (" bcdef", 5, " bcd…"), ("", 5, "")],
)
def test_long_messages_are_cut(words: str, width: int, text: str) -> None:
    assert kernel_seen.shorter(words, width) == text


def test_messages_are_cut_at_120_characters() -> None:
    assert kernel_seen.shorter("x" * 120) == "x" * 120
    assert len(kernel_seen.shorter("x" * 121)) == 120


# --- PCIe


def test_requests_that_only_ask_what_a_device_can_do_are_no_error(healthy: Snapshot) -> None:
    bus = "0000:ff:00.0"
    asked = event("aer-uncorrected", bus, who="Non-Fatal", text="type=Transaction Layer, UnsupReq")
    assert verdict(healthy, "pcie-uncorrected-errors", asked) is PASS
    for other in (
        msgspec.structs.replace(asked, who="Fatal"),
        msgspec.structs.replace(asked, text="type=Transaction Layer, CmpltTO"),
    ):
        assert verdict(healthy, "pcie-uncorrected-errors", asked, other) is FAIL


@pytest.mark.parametrize("rule_id", ["pcie-uncorrected-errors", "pcie-corrected-errors"])
def test_devices_whose_counters_were_read_are_judged_by_those(healthy: Snapshot, rule_id: str) -> None:
    kind = "aer-uncorrected" if rule_id == "pcie-uncorrected-errors" else "aer-corrected"
    assert not isinstance(healthy.pci, Missing)
    devices = healthy.pci.devices
    assert not isinstance(devices, Missing)
    counted = next(device for device in devices if not isinstance(device.errors, Missing))
    told = event(kind, counted.address, count=80)
    assert verdict(healthy, rule_id, told) is PASS
    assert subjects(healthy, rule_id, told, event(kind, "0000:ff:00.0", count=80)) == ["0000:ff:00.0"]
    uncounted = tuple(msgspec.structs.replace(d, errors=NOTHING) if d is counted else d for d in devices)
    for blind in (
        changed(healthy, "pci", devices=uncounted),
        changed(healthy, "pci", devices=DENIED),
        msgspec.structs.replace(healthy, pci=DENIED),
    ):
        assert verdict(blind, rule_id, told) is FAIL


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event("aer-corrected", "0000:ff:00.0", count=80)], FAIL),
        ([event("aer-corrected", "0000:ff:00.0", count=79)], PASS),
        ([event("aer-corrected", "0000:ff:00.0", count=40), event("aer-corrected", "0000:ff:00.0", count=40)], FAIL),
        ([event("aer-corrected", "0000:ff:00.0", count=79), event("aer-corrected", "0000:fe:00.0", count=79)], PASS),
        ([event("aer-corrected", "0000:ff:00.0", count=80, at=NOW - DAY - 60)], PASS),
        ([event("aer-corrected", "0000:ff:00.0", count=80, who="Transaction Layer")], PASS),  # an advisory error
        ([event("aer-corrected", "0000:ff:00.0", count=80, who="Physical Layer")], FAIL),
    ],
)
def test_corrected_errors_of_one_device_in_a_day(healthy: Snapshot, events: list[KernelEvent], expected: Verdict) -> None:
    (finding,) = judged(with_log(healthy, *events), "pcie-corrected-errors").evidence
    assert finding.verdict is expected


NARROW = "63.0 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:00:01.0 (capable of 252 Gb/s with 16.0 GT/s PCIe x16 link)"


@pytest.mark.parametrize(
    ("driver", "trains"),
    [("mlx5_core", True), ("bnxt_en", True), ("nvidia", True), ("amdgpu", True), ("pci", False), ("nvme", False)],
)
def test_cards_of_which_the_kernel_says_that_they_lack_lanes(healthy: Snapshot, driver: str, trains: bool) -> None:
    rule_id, card = "pcie-narrow-slot-logged", "0000:ff:00.0"
    told = event("pcie-narrow", card, text=f"{driver} {card}: {NARROW}", at=3.0)  # at the boot, a month ago
    (finding,) = judged(with_log(healthy, told), rule_id).evidence
    assert finding.verdict is (FAIL if trains else PASS)
    assert finding.seen.startswith("63.0 Gb/s") is trains
    assert verdict(healthy, rule_id, event("link-down", card, text=told.text)) is PASS
    for hypervisor, expected in (("kvm", NA), (DENIED, FAIL if trains else PASS)):
        assert verdict(changed(healthy, "system", hypervisor=hypervisor), rule_id, told) is expected
    assert verdict(msgspec.structs.replace(healthy, system=DENIED), rule_id, told) is (FAIL if trains else PASS)


def test_gpus_that_lack_lanes_by_whatever_line(healthy: Snapshot) -> None:
    rule_id, card = "pcie-narrow-slot-logged", "0000:ff:00.0"
    told = event("pcie-narrow", card, text=f"pci {card}: {NARROW}")
    assert verdict(healthy, rule_id, told) is PASS
    assert not isinstance(healthy.gpu, Missing) and not isinstance(healthy.gpu.devices, Missing)
    shown = changed(
        healthy, "gpu", devices=(*healthy.gpu.devices[1:], msgspec.structs.replace(healthy.gpu.devices[0], pci_address=card))
    )
    on_bus = changed(healthy, "driver", nvidia_devices=("0000:fe:00.0", card))
    for seen in (
        shown,
        on_bus,
        changed(shown, "driver", nvidia_devices=DENIED),
        msgspec.structs.replace(shown, driver=DENIED),
        changed(on_bus, "gpu", devices=DENIED),
        msgspec.structs.replace(on_bus, gpu=DENIED),
    ):
        assert verdict(seen, rule_id, told) is FAIL
    blind = msgspec.structs.replace(healthy, gpu=DENIED, driver=DENIED)
    assert verdict(blind, rule_id, told) is PASS


def test_cards_whose_links_were_read_are_judged_by_those(healthy: Snapshot) -> None:
    rule_id = "pcie-narrow-slot-logged"
    assert not isinstance(healthy.pci, Missing) and not isinstance(healthy.pci.devices, Missing)
    devices = healthy.pci.devices
    card = next(device for device in devices if not isinstance(device.link.current_width, Missing))
    other = event("pcie-narrow", "0000:ff:00.0", text=f"nvidia 0000:ff:00.0: {NARROW}")
    told = event("pcie-narrow", card.address, text=f"nvidia {card.address}: {NARROW}")
    assert verdict(healthy, rule_id, told) is PASS
    assert subjects(healthy, rule_id, other, told, other) == ["0000:ff:00.0"]
    unread = msgspec.structs.replace(card, link=msgspec.structs.replace(card.link, current_width=DENIED))
    for blind in (
        changed(healthy, "pci", devices=tuple(unread if device is card else device for device in devices)),
        changed(healthy, "pci", devices=DENIED),
        msgspec.structs.replace(healthy, pci=DENIED),
    ):
        assert verdict(blind, rule_id, told) is FAIL


# --- network


@pytest.mark.parametrize(
    ("at", "booted", "expected"),
    [
        (NOW - 60, 1.7e9, FAIL),
        (179.9, 1.7e9, PASS),  # links go up and down while the machine starts
        (180.0, 1.7e9, FAIL),
        (170.0, 0.5, PASS),
        (170.0, 0.0, FAIL),  # the log shows a calendar: this is no time since boot
        (170.0, DENIED, FAIL),
        (None, 1.7e9, FAIL),
    ],
)
def test_links_that_went_down_after_the_start(healthy: Snapshot, at: float | None, booted: Any, expected: Verdict) -> None:
    down = event("link-down", "eno1", at=at, count=3)
    assert verdict(healthy, "network-link-flapping", down, now_s=200.0 if at and at < 1000 else NOW, booted=booted) is expected


@pytest.mark.parametrize(
    ("counts", "expected"), [({"a": 3}, ["a"]), ({"a": 2, "b": 2}, []), ({}, []), ({"a": 2, "b": 3, "c": 9}, ["b", "c"])]
)
def test_a_link_that_goes_down_three_times_in_a_day(healthy: Snapshot, counts: dict[str, int], expected: list[str]) -> None:
    events = [event("link-down", name, count=count) for name, count in counts.items()]
    assert subjects(healthy, "network-link-flapping", *events) == expected
    assert subjects(healthy, "network-link-flapping", *(event("link-down", "a", at=NOW - at) for at in (9, 600, DAY))) == ["a"]
    assert subjects(healthy, "network-link-flapping", *(event("link-down", "a", at=NOW - at) for at in (9, 600, DAY + 1))) == []
    (finding, *more) = judged(with_log(healthy, *events), "network-link-flapping").evidence
    assert finding.verdict is (FAIL if expected else PASS)
    assert len(more) == max(len(expected) - 1, 0)


# --- disks and file servers


@pytest.mark.parametrize(
    ("name", "gone"),
    [("sdz", True), ("sdz1", True), ("sda", False), ("sda2", False), ("nvme9n1", False), ("dm-7", False), ("md0", False)],
)
def test_a_disk_that_was_pulled_out_is_not_broken(healthy: Snapshot, name: str, gone: bool) -> None:
    assert not isinstance(healthy.storage, Missing)
    disks = healthy.storage.disks
    assert not isinstance(disks, Missing)
    seen = changed(healthy, "storage", disks=(msgspec.structs.replace(disks[0], name="sda"), *disks[1:]))
    assert verdict(seen, "disk-errors-logged", event("disk-io", name)) is (PASS if gone else FAIL)
    assert subjects(seen, "disk-errors-logged", event("disk-io", name), event("fs-error", "dm-9"))[-1] == "dm-9"
    for blind in (changed(healthy, "storage", disks=DENIED), msgspec.structs.replace(healthy, storage=DENIED)):
        assert verdict(blind, "disk-errors-logged", event("disk-io", name)) is FAIL


def lost(at: float | None, count: int = 1, server: str = "nas") -> KernelEvent:
    return event("server-lost", server, at=at, count=count)


def back(at: float | None, count: int = 1, server: str = "nas") -> KernelEvent:
    return event("server-back", server, at=at, count=count)


@pytest.mark.parametrize(
    ("events", "away", "often"),
    [
        ([lost(NOW - 60)], True, False),
        ([lost(NOW - 60), back(NOW - 50)], False, False),
        ([back(NOW - 60), lost(NOW - 50)], True, False),
        ([lost(NOW - 60), back(NOW - 60)], False, False),  # at the same time: it must have been away before
        ([back(NOW - 60), lost(NOW - 60)], False, False),
        ([lost(NOW - 60), msgspec.structs.replace(back(NOW - 90), last_s=NOW - 10)], False, False),  # bursts overlap
        ([lost(None), back(None)], False, False),  # no times: the order of the lines says it
        ([back(None), lost(None)], True, False),
        ([back(None), lost(None), back(None), lost(None)], True, False),
        ([lost(None), back(None), back(None)], False, False),
        ([lost(0.0), back(None), lost(None), back(None)], False, False),
        ([lost(NOW - 60, 10), back(NOW - 50)], False, True),
        ([lost(NOW - 60, 9), back(NOW - 50, 20)], False, False),
        ([lost(NOW - 60, 5), back(NOW - 50), lost(NOW - 40, 5), back(NOW - 30)], False, True),
        ([lost(NOW - DAY - 1, 10), back(NOW - 50)], False, False),
        ([back(NOW - 60, 20)], False, False),
        ([], False, False),
    ],
)
def test_servers_that_are_away_or_were_too_often(healthy: Snapshot, events: list[KernelEvent], away: bool, often: bool) -> None:
    rule_id = "file-server-not-responding"
    (finding,) = judged(with_log(healthy, *events), rule_id).evidence
    assert finding.verdict is (FAIL if away or often else PASS)
    assert ("has not come back" in finding.seen) is away
    other = lost(NOW - 60, server="other")
    assert subjects(healthy, rule_id, other, *events) == ["other", *["nas"] * (away or often)]


# --- memory, processors and programs


_NODES = "the end of the memory nodes that it was bound to"


@pytest.mark.parametrize(
    ("subject", "text", "limit"),
    [
        ("Memory cgroup out of memory", "", "a cgroup's limit"),
        ("Detected", "", "a cgroup's limit"),  # slurmstepd's word
        ("Out of memory", "oom-kill:constraint=CONSTRAINT_NONE", "the end of the machine's memory"),
        ("Out of memory", "oom-kill:constraint=CONSTRAINT_CPUSET", _NODES),
        ("Out of memory", "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY", _NODES),
        ("Memory cgroup out of memory", "x CONSTRAINT_MEMCG /slurm/job_7", "a cgroup's limit was reached (/slurm/job_7)"),
    ],
)
def test_what_ran_out_of_memory(healthy: Snapshot, subject: str, text: str, limit: str) -> None:
    (finding,) = judged(with_log(healthy, event("oom-kill", subject, text=text, who="python3")), "oom-kill-logged").evidence
    assert finding.subject == "python3" and finding.seen.endswith(
        f": {limit}" if "reached" in limit else f": {limit} was reached"
    )


def test_each_process_that_was_killed_is_named_once_for_each_limit(healthy: Snapshot) -> None:
    machine, group = "Out of memory", "Memory cgroup out of memory"
    killed = [("python3", machine), ("ray", machine), ("python3", machine), ("python3", group)]
    events = [event("oom-kill", subject, who=who) for who, subject in killed]
    found = judged(with_log(healthy, *events), "oom-kill-logged").evidence
    assert [item.subject for item in found] == ["python3", "ray", "python3"]
    assert "killed, 2 times" in found[0].seen and "times" not in found[1].seen + found[2].seen


UC, CE = "ba00000000000135", "8c00004000010090"  # bit 61 of IA32_MCi_STATUS is set in the first


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (event("machine-check", "3", text=f"Machine Check: 0 Bank 5: {UC}"), ["CPU 3"]),
        (event("machine-check", "3", text=f"Machine Check: 0 Bank 17: {CE}"), []),
        (event("machine-check", "3", text="Machine Check: 0 Bank 5: 2000000000000000"), ["CPU 3"]),
        (event("machine-check", "3", text="Machine Check: 0 Bank 5: dfffffffffffffff"), []),
        (event("machine-check", "3", text="Machine Check Exception"), ["CPU 3"]),
        (event("machine-check", "", text="Machine Check Exception"), ["memory"]),
        (
            event("memory-uncorrected", "MC0", text=f"Bank 5: {CE}", who="CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
            ["CPU_SrcID#0_MC#0_Chan#0_DIMM#0"],
        ),
        (event("memory-uncorrected", "MC0"), ["MC0"]),
    ],
)
def test_uncorrected_errors(healthy: Snapshot, told: KernelEvent, expected: list[str]) -> None:
    assert subjects(healthy, "memory-uncorrected-errors", told) == expected
    (finding,) = judged(with_log(healthy, told), "memory-uncorrected-errors").evidence
    assert finding.verdict is (FAIL if expected else PASS)


def corrected(module: str, code: int, count: int, subject: str = "MC0", at: float = NOW - 60) -> KernelEvent:
    return event("memory-corrected", subject, at=at, code=code, who=module, count=count)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([corrected("A", 1, 50)], ["A"]),
        ([corrected("A", 1, 49)], []),
        ([corrected("A", 0, 50)], ["A"]),  # a message that gives no number tells one error
        ([corrected("A", 0, 49)], []),
        ([corrected("A", 10, 5)], ["A"]),
        ([corrected("A", 25, 1), corrected("A", 25, 1)], ["A"]),
        ([corrected("A", 49, 1), corrected("B", 49, 1)], []),
        ([corrected("A", 2, 1), corrected("B", 50, 1)], ["B"]),
        ([corrected("B", 50, 1), corrected("A", 2, 1)], ["B"]),
        ([corrected("", 50, 1, "MC1")], ["MC1"]),
        ([corrected("A", 50, 1, at=NOW - DAY)], ["A"]),
        ([corrected("A", 50, 1, at=NOW - DAY - 1)], []),
        ([], []),
    ],
)
def test_many_corrected_errors_on_one_module(healthy: Snapshot, events: list[KernelEvent], expected: list[str]) -> None:
    assert subjects(healthy, "memory-corrected-errors", *events) == expected
    (finding,) = judged(with_log(healthy, *events), "memory-corrected-errors").evidence
    assert finding.verdict is (FAIL if expected else PASS)


def stall(count: int = 1, module: str = "", kind: str = "lockup") -> KernelEvent:
    return event(kind, "", count=count, text=f"CPU stuck{' in the module ' + module if module else ''}")


@pytest.mark.parametrize("hypervisor", ["kvm", "", DENIED, None])
@pytest.mark.parametrize(
    ("events", "metal", "virtual"),
    [
        ([stall(1)], ["CPU"], []),  # a hypervisor that paused the machine looks the same
        ([stall(2)], ["CPU"], []),
        ([stall(3)], ["CPU"], ["CPU"]),
        ([stall(1), stall(1), stall(1)], ["CPU"], ["CPU"]),
        ([stall(1), stall(1, "nvidia")], ["CPU"], ["CPU"]),
        ([stall(2, kind="hung-task")], [], []),
        ([stall(3, kind="hung-task")], ["tasks"], ["tasks"]),
        ([stall(1, "nfs", "hung-task")], ["tasks"], ["tasks"]),
        ([stall(3), stall(3, kind="hung-task")], ["CPU", "tasks"], ["CPU", "tasks"]),
        ([stall(1), stall(1, kind="hung-task")], ["CPU"], []),
        ([], [], []),
    ],
)
def test_cpus_and_tasks_that_hung(
    healthy: Snapshot, hypervisor: Any, events: list[KernelEvent], metal: list[str], virtual: list[str]
) -> None:
    seen = (
        msgspec.structs.replace(healthy, system=DENIED)
        if hypervisor is None
        else changed(healthy, "system", hypervisor=hypervisor)
    )
    expected = virtual if hypervisor == "kvm" else metal
    assert subjects(seen, "cpu-lockup-logged", *events) == expected
    found = judged(with_log(seen, *events), "cpu-lockup-logged").evidence
    assert [item.verdict for item in found] == ([FAIL] * len(expected) or [PASS])


def test_the_lockup_that_names_a_module_is_shown(healthy: Snapshot) -> None:
    for kind in ("lockup", "hung-task"):
        events = [stall(5, kind=kind), stall(1, "nvidia", kind), stall(1, "mlx5_core", kind)]
        (finding,) = judged(with_log(healthy, *events), "cpu-lockup-logged").evidence
        assert "in the module nvidia" in finding.seen
        (finding,) = judged(with_log(healthy, stall(5, kind=kind)), "cpu-lockup-logged").evidence
        assert finding.seen.startswith("CPU stuck")


def hot(subject: str, count: int, at: float = NOW - 60) -> KernelEvent:
    return event("cpu-hot", subject, count=count, at=at)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([hot("Core", 10)], ["CPU (core)"]),
        ([hot("Core", 9)], []),
        ([hot("Core", 5), hot("Package", 5)], ["CPU (core)", "CPU (package)"]),
        ([hot("Core", 10, NOW - DAY)], ["CPU (core)"]),
        ([hot("Core", 10, NOW - DAY - 1)], []),
        ([], []),
    ],
)
def test_processors_that_are_too_hot_again_and_again(healthy: Snapshot, events: list[KernelEvent], expected: list[str]) -> None:
    assert subjects(healthy, "cpu-thermal-throttle-logged", *events) == expected
    found = judged(with_log(healthy, *events), "cpu-thermal-throttle-logged").evidence
    assert [item.verdict for item in found] == ([FAIL] * len(expected) or [PASS])


def test_programs_that_crashed_are_named_once_for_each_library(healthy: Snapshot) -> None:
    crashes = [("python3", "libnccl.so.2"), ("python3", "libcuda.so.1"), ("python3", "libnccl.so.2"), ("ray", "libnccl.so.2")]
    events = [event("crash", process, who=library) for process, library in crashes]
    found = judged(with_log(healthy, *events), "native-crash-logged").evidence
    assert [(item.subject, item.seen.partition(",")[0]) for item in found] == [
        ("python3", "crashed in libnccl.so.2"),
        ("python3", "crashed in libcuda.so.1"),
        ("ray", "crashed in libnccl.so.2"),
    ]
