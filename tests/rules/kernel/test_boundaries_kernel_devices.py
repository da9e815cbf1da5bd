"""What counts in the kernel's log: kinds of messages, the window, how many are too many, and what other facts overrule (kernel_devices)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kernel_hosts import DAY, DENIED, FAIL, NA, NOW, PASS, UNKNOWN, changed, event, judged, subjects, with_log

from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

NOTHING = Missing(Why.ABSENT, "test")


def verdict(seen: Snapshot, rule_id: str, *events: KernelEvent, **facts: Any) -> Verdict:
    return judged(with_log(seen, *events, **facts), rule_id).verdict


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


HOUR = 3600


def often(count: int, seconds: float, ago: float = 0.0) -> list[KernelEvent]:
    """Return corrected errors that were logged over so many seconds, the last of them so long ago."""
    told = event("aer-corrected", "0000:ff:00.0", count=count)
    return [msgspec.structs.replace(told, first_s=NOW - ago - seconds, last_s=NOW - ago)]


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
        (often(10, 3 * HOUR), FAIL),  # 80 a day
        (often(10, 3 * HOUR + 60), PASS),
        (often(9, 300), PASS),
        (often(10, 60), FAIL),
        (often(10, 59), PASS),  # one moment
        (often(79, 300, ago=DAY - 600), PASS),  # and none since
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
