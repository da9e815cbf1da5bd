"""PCI functions from both sides of each mark: what is left out, what cannot be told, and that the next one is judged all the same (pci)."""

from __future__ import annotations

from typing import Any

import pytest
from pci_hosts import (
    FIRST,
    FIRST_CARD,
    LAST,
    LAST_CARD,
    PORT,
    Change,
    failed,
    functions,
    geforce,
    gone,
    healthy,
    judged,
    link,
    only,
    put,
    replace,
    seen,
    verdict,
    where,
    with_gpus,
    with_intent,
    with_pci,
    with_system,
)

from torchtune_sys.model.facts.python import LoadedLink
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.pci import common as pci_seen


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        *((link(**{name: gone(why)}), "na") for name in ("current_gts", "max_gts") for why in (Why.NOT_SUPPORTED, Why.ABSENT)),
        *((link(**{name: gone(Why.DENIED)}), "unknown") for name in ("current_gts", "max_gts", "current_width", "max_width")),
    ],
)
def test_cards_and_drives_without_a_link_of_their_own(change: Change, expected: str) -> None:
    assert verdict("pcie-link-degraded", where(healthy(), change)) == expected
    host = where(where(healthy(), change, "0000:81:00.0"), link(current_width=2), "0000:82:00.0")
    assert failed("pcie-link-degraded", host) == ["NVMe drive 0000:82:00.0"]


@pytest.mark.parametrize("class_", ["0x020000", "0x020700", "0x010802"])
def test_ethernet_infiniband_and_nvme_have_links_that_matter(class_: str) -> None:
    host = where(healthy(), put(class_=class_, vendor="0x15b3"), "0000:81:00.0")
    assert len(failed("pcie-link-degraded", where(host, link(current_width=1), "0000:81:00.0"))) == 1
    other = where(host, put(class_="0x010700"), "0000:81:00.0")
    assert failed("pcie-link-degraded", where(other, link(current_width=1), "0000:81:00.0")) == []


@pytest.mark.parametrize(
    ("card", "slot", "expected"),
    [
        ({}, {}, "pass"),
        ({"current_width": 2}, {}, "fail"),
        ({"current_gts": 8.0}, {}, "fail"),
        ({"current_width": 2}, {"max_width": 2}, "pass"),
        ({"current_width": 2}, {"max_width": gone(Why.ABSENT)}, "pass"),  # the slot may be what limits the drive
        ({"current_width": 2}, {"max_gts": gone(Why.ABSENT)}, "pass"),
        ({}, {"max_width": gone(Why.ABSENT)}, "pass"),
        ({}, {"max_width": 2}, "pass"),  # more than the slot says it has: it works all the same
    ],
)
def test_a_drive_and_its_slot(card: dict[str, Any], slot: dict[str, Any], expected: str) -> None:
    host = where(where(healthy(), link(**card), "0000:81:00.0"), link(**slot), "0000:80:01.0")
    assert verdict("pcie-link-degraded", host) == expected


def test_a_drive_at_its_best_is_judged_without_its_slot() -> None:
    alone = with_pci(healthy(), devices=tuple(d for d in functions(healthy()) if d.address == "0000:81:00.0"))
    assert verdict("pcie-link-degraded", alone) == "pass"
    assert verdict("pcie-link-degraded", where(alone, link(current_gts=8.0))) == "na"


@pytest.mark.parametrize(
    ("rule", "guest", "unread"),
    [
        ("gpu-pcie-link-degraded", "pass", "unknown"),  # of the GPUs' siblings
        ("gpu-slot-narrower-than-card", "na", "unknown"),
        ("pcie-link-degraded", "pass", "unknown"),
        ("acs-redirects-peer-traffic", "na", "unknown"),
        ("iommu-translates-gpu-traffic", "na", "unknown"),
    ],
)
def test_what_is_true_of_bare_metal_only(rule: str, guest: str, unread: str) -> None:
    assert verdict(rule, with_system(healthy(), hypervisor="kvm")) == guest
    assert verdict(rule, with_system(healthy(), hypervisor=gone(Why.DENIED))) == unread
    assert verdict(rule, replace(healthy(), system=gone(Why.DENIED))) == unread


def test_a_report_that_names_no_hypervisor_is_judged_by_siblings() -> None:
    host = with_system(healthy(), hypervisor=gone(Why.NOT_RECORDED))
    assert verdict("gpu-pcie-link-degraded", host) == "pass"
    assert failed("gpu-pcie-link-degraded", where(host, link(current_width=4), LAST)) == [f"GPU {LAST}"]


@pytest.mark.parametrize(("gpus", "expected"), [(8, "fail"), (4, "fail"), (3, "na")])  # two slots of a workstation differ
def test_on_bare_metal_a_gpu_without_a_visible_slot_is_compared_with_many_of_its_model(gpus: int, expected: str) -> None:
    kept = [d for d in functions(healthy()) if d.address in {g.address for g in pci_seen.gpus(healthy())[-gpus:]}]
    bare = with_pci(healthy(), devices=tuple(kept))
    assert verdict("gpu-pcie-link-degraded", where(bare, link(current_width=8), LAST)) == expected


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"pcie_width": 8}, "fail"),
        ({"pcie_width": 16}, "pass"),
        ({"pcie_width": gone(Why.ABSENT)}, "pass"),
        ({"pcie_width": 8, "name": gone(Why.ABSENT)}, "pass"),
        ({"pcie_width": 8, "name": "NVIDIA L4"}, "pass"),
    ],
)
@pytest.mark.parametrize("unseen", ["pci", "devices"])
def test_widths_that_the_driver_tells_where_the_bus_shows_none(first: dict[str, Any], expected: str, unseen: str) -> None:
    bare = (
        replace(healthy(), pci=gone(Why.NOT_RECORDED)) if unseen == "pci" else with_pci(healthy(), devices=gone(Why.NOT_RECORDED))
    )
    host = with_gpus(with_system(bare, hypervisor="kvm"), *([{"pcie_width": 16}] * 8))
    assert verdict("gpu-pcie-link-degraded", with_gpus(host, first)) == expected
    both = with_gpus(host, first, {"pcie_width": 4})
    assert failed("gpu-pcie-link-degraded", both)[-1].startswith("GPU 1")
    assert verdict("gpu-pcie-link-degraded", with_gpus(host, *([{"pcie_width": gone(Why.ABSENT)}] * 8))) == "na"
    assert verdict("gpu-pcie-link-degraded", with_gpus(host, *([{"pcie_width": 8}] * 8))) == "pass"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"pcie_width": 4}, "unknown"),
        ({"pcie_width": 4, "utilization_pct": 49}, "unknown"),
        ({"pcie_width": 4, "utilization_pct": 50}, "fail"),
        ({"pcie_width": 4, "pcie_gen": 5, "pcie_gen_max": 5}, "fail"),  # no link that sleeps
        ({"pcie_width": 4, "pcie_gen": 1, "pcie_gen_max": 5}, "unknown"),
        ({"pcie_width": 4, "pcie_gen": 5, "pcie_gen_max": gone(Why.NOT_RECORDED)}, "unknown"),
        ({"pcie_width": 1, "utilization_pct": 90}, "fail"),
        ({"pcie_width": 8, "utilization_pct": 90}, "pass"),
        ({"pcie_width": 4, "pcie_width_max": 8, "utilization_pct": 90}, "pass"),
        ({"pcie_width": 4, "pcie_width_max": gone(Why.NOT_RECORDED), "utilization_pct": 90}, "pass"),
        ({"pcie_width": 1, "name": "NVIDIA GB10", "utilization_pct": 90}, "pass"),
        ({"pcie_width": 4, "name": "NVIDIA GeForce RTX 4060 Laptop GPU", "utilization_pct": 90}, "pass"),
    ],
)
def test_very_few_lanes_of_a_gpu_without_siblings(first: dict[str, Any], expected: str) -> None:
    host = with_system(replace(healthy(), pci=gone(Why.NOT_RECORDED)), hypervisor=gone(Why.NOT_RECORDED))
    alone = with_gpus(host, *({"pcie_width": gone(Why.ABSENT)} for _ in range(8)))
    assert verdict("gpu-pcie-link-degraded", with_gpus(alone, {"pcie_width_max": 16, "pcie_gen": 1, **first})) == expected


SLOW = {"current_gts": 8.0}
BUSY = {"utilization_pct": 90, "pcie_gen": 3}


@pytest.mark.parametrize(
    ("card", "slot", "shown", "expected"),
    [
        (SLOW, {}, BUSY, "fail"),
        (SLOW, {}, {**BUSY, "pcie_gen": 5}, "pass"),
        (SLOW, {"max_gts": 8.0}, BUSY, "pass"),
        ({**SLOW, "max_gts": 8.0}, {}, BUSY, "pass"),
        ({**SLOW, "max_gts": gone(Why.ABSENT)}, {}, BUSY, "pass"),  # there is nothing to measure the speed by
        (SLOW, {"max_gts": gone(Why.ABSENT)}, BUSY, "pass"),
        (SLOW, {"max_width": gone(Why.ABSENT)}, BUSY, "pass"),  # of the others
        ({**SLOW, "max_gts": 128.0}, {"max_gts": 128.0}, BUSY, "pass"),  # a generation that is not known yet
        *(
            (SLOW, {}, {"utilization_pct": gone(why)}, "unknown")
            for why in (Why.DENIED, Why.TIMEOUT, Why.FAILED, Why.UNPARSED, Why.CRASHED)
        ),
        *(
            (SLOW, {}, {"utilization_pct": gone(why)}, "pass")
            for why in (Why.NOT_SUPPORTED, Why.ABSENT, Why.NO_TOOL, Why.NOT_RECORDED)
        ),
        (SLOW, {}, {"utilization_pct": 50, "pcie_gen": gone(Why.DENIED)}, "unknown"),
        (SLOW, {}, {"utilization_pct": 49, "pcie_gen": gone(Why.DENIED)}, "pass"),
        ({}, {}, {"utilization_pct": gone(Why.DENIED)}, "pass"),  # it is fast just now
        ({"current_gts": 16.0, "max_gts": 16.0}, {}, {"utilization_pct": gone(Why.DENIED)}, "pass"),
        ({"current_gts": gone(Why.FAILED)}, {}, {"utilization_pct": gone(Why.DENIED)}, "unknown"),
        ({**SLOW, "current_width": 8}, {}, {"utilization_pct": gone(Why.DENIED)}, "fail"),  # of its width
        (SLOW, {}, {"pci_address": gone(Why.DENIED)}, "unknown"),  # it may be this one, and be busy
        (SLOW, {}, {"pci_address": gone(Why.NOT_RECORDED)}, "pass"),
    ],
)
def test_a_link_that_is_slow_just_now(card: Any, slot: Any, shown: Any, expected: str) -> None:
    host = with_gpus(
        where(where(healthy(), link(**card), FIRST), link(**slot), PORT), {"utilization_pct": 0, "pcie_gen": 1, **shown}
    )
    assert verdict("gpu-pcie-link-degraded", host) == expected
    worse = where(host, link(current_width=8), LAST)
    assert f"GPU {LAST}" in failed("gpu-pcie-link-degraded", worse)


def test_a_slow_link_names_both_generations() -> None:
    host = with_gpus(where(healthy(), link(**SLOW), FIRST), BUSY)
    item = next(item for item in judged("gpu-pcie-link-degraded", host).evidence if item.verdict is Verdict.FAIL)
    assert "generation 3" in item.seen and "generation 5" in item.wanted


def test_of_a_gpu_without_address_only_those_without_a_name_may_be_busy() -> None:
    slow = where(healthy(), link(**SLOW), FIRST)
    assert verdict("gpu-pcie-link-degraded", with_gpus(slow, {}, {"pci_address": gone(Why.DENIED)})) == "pass"
    assert verdict("gpu-pcie-link-degraded", replace(slow, gpu=gone(Why.DENIED))) == "unknown"
    assert verdict("gpu-pcie-link-degraded", replace(slow, gpu=gone(Why.ABSENT))) == "pass"


@pytest.mark.parametrize(
    ("name", "expected"),
    [(name, "na") for name in ("NVIDIA RTX A2000 Laptop GPU", "Quadro RTX 5000 with Max-Q Design", "Quadro M2200 Mobile")]
    + [("NVIDIA H100 80GB HBM3", "fail"), (gone(Why.ABSENT), "fail")],
)
def test_soldered_gpus(name: Any, expected: str) -> None:
    host = with_gpus(where(only(healthy(), FIRST), link(current_width=8), FIRST), {"name": name})
    assert verdict("gpu-pcie-link-degraded", host) == expected
    both = with_gpus(where(healthy(), link(current_width=8), FIRST, LAST), {"name": name})
    assert failed("gpu-pcie-link-degraded", both)[-1] == f"GPU {LAST}"


def test_a_laptop_s_gpu_is_known_by_the_firmware_too() -> None:
    host = with_gpus(where(only(healthy(), FIRST), link(current_width=8), FIRST), {"name": "Quadro P2000"})
    assert verdict("gpu-pcie-link-degraded", host) == "fail"
    assert not isinstance(host.hardware, Missing)
    assert verdict("gpu-pcie-link-degraded", replace(host, hardware=replace(host.hardware, portable=True))) == "na"


@pytest.mark.parametrize(
    ("links", "utilization", "live", "expected"),
    [
        (gone(Why.TIMEOUT), 0, True, "unknown"),
        (gone(Why.ABSENT), 0, True, "pass"),
        (gone(Why.TIMEOUT), 0, False, "pass"),
        ((), 0, True, "pass"),
        (((FIRST, 8.0),), 0, True, "fail"),
        (((FIRST, 32.0),), 0, True, "pass"),
        (((FIRST, 32.0),), gone(Why.DENIED), True, "pass"),  # it was looked at while something was copied
        (((FIRST, gone(Why.DENIED)),), 0, True, "unknown"),
        (((FIRST, gone(Why.ABSENT)),), gone(Why.DENIED), True, "unknown"),
        (((LAST, 8.0),), 0, True, "fail"),
    ],
)
def test_a_link_during_a_copy(links: Any, utilization: Any, live: bool, expected: str) -> None:
    asked = seen("gpu-pcie-link-degraded.fail.live")
    assert not isinstance(asked.python, Missing) and not isinstance(asked.python.live, Missing)
    if not isinstance(links, Missing):
        links = tuple(
            LoadedLink(address=address, current_gts=gts, current_width=16, copy_gbytes_per_s=gone(Why.ABSENT))
            for address, gts in links
        )
    host = replace(asked, python=replace(asked.python, live=replace(asked.python.live, links=links)))
    host = with_gpus(where(host, link(**SLOW), FIRST), {"utilization_pct": utilization, "pcie_gen": 1})
    assert verdict("gpu-pcie-link-degraded", with_intent(host, live=live)) == expected


def test_a_copy_names_both_generations_and_its_speed() -> None:
    result = judged("gpu-pcie-link-degraded", seen("gpu-pcie-link-degraded.fail.live"))
    (item,) = (item for item in result.evidence if item.verdict is Verdict.FAIL)
    assert "generation 3" in item.seen and "12.4 GB/s" in item.seen and "generation 5" in item.wanted


@pytest.mark.parametrize(
    ("card", "slot", "expected"),
    [(16, 16, "pass"), (16, 8, "fail"), (8, 16, "pass"), (16, gone(Why.ABSENT), "pass"), (gone(Why.NOT_SUPPORTED), 16, "pass")],
)
def test_slots_and_cards(card: Any, slot: Any, expected: str) -> None:
    host = where(where(healthy(), link(max_width=card), FIRST), link(max_width=slot), PORT)
    assert verdict("gpu-slot-narrower-than-card", host) == expected
    assert verdict("gpu-slot-narrower-than-card", only(host)) == "na"


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), "na"),
        ("NVIDIA GeForce RTX 3090", (8, 6), "na"),
        ("NVIDIA GeForce RTX 5090", (12, 0), "na"),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1), "fail"),
        ("NVIDIA TITAN V", (7, 0), "fail"),
        ("NVIDIA GeForce RTX 3090", gone(Why.NOT_RECORDED), "fail"),
        (gone(Why.NOT_RECORDED), (8, 6), "fail"),
        ("NVIDIA RTX A6000", (8, 6), "fail"),
    ],
)
def test_gpus_that_talk_to_others(name: Any, capability: Any, expected: str) -> None:
    assert verdict("iommu-translates-gpu-traffic", geforce(healthy(), name, capability)) == expected


@pytest.mark.parametrize(
    "rule", ["acs-redirects-peer-traffic", "gpu-pcie-link-degraded", "gpu-bar-small", "pcie-read-request-small"]
)
def test_functions_of_unknown_kind_are_not_no_gpu(rule: str) -> None:
    unread = gone(Why.NOT_RECORDED)
    found = judged(rule, where(healthy(), put(class_=unread, vendor=unread)))
    assert found.verdict is Verdict.UNKNOWN and found.why_unknown == unread


def test_gpus_handed_to_guests_are_kept_apart() -> None:
    translated = where(healthy(), put(iommu_type="DMA"))
    assert verdict("iommu-translates-gpu-traffic", where(translated, put(driver="vfio-pci"), LAST)) == "na"
    assert verdict("iommu-translates-gpu-traffic", where(translated, put(driver=gone(Why.ABSENT)))) == "fail"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("iommu=pt",), "pass"),
        (("quiet", "iommu.passthrough=1"), "pass"),
        (("iommu=off",), "pass"),
        (("iommu=on",), "unknown"),
        ((), "unknown"),
        (gone(Why.DENIED), "unknown"),
    ],
)
def test_pass_through_as_old_kernels_were_asked_for_it(words: Any, expected: str) -> None:
    host = with_system(where(healthy(), put(iommu_type=gone(Why.NOT_RECORDED), iommu_group="31")), cmdline=words)
    assert verdict("iommu-translates-gpu-traffic", host) == expected


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"class_": "0x030200", "vendor": "0x10de"}, "GPU 0000:01:00.0"),
        ({"class_": "0x020700", "rdma": "mlx5_3"}, "mlx5_3 (0000:01:00.0)"),
        ({"class_": "0x020000"}, "network card 0000:01:00.0"),
        ({"class_": "0x010802"}, "drive 0000:01:00.0"),
        ({"class_": "0x060400"}, "bridge 0000:01:00.0"),
        ({"class_": "0x0c0330"}, "device 0000:01:00.0"),
        ({"class_": gone(Why.FAILED)}, "device 0000:01:00.0"),
        ({"class_": "0x030200", "vendor": "0x10de", "address": "GPU3"}, "GPU 3"),
    ],
)
def test_names_of_functions(facts: dict[str, Any], name: str) -> None:
    assert pci_seen.name(replace(functions(healthy())[0], **{"address": "0000:01:00.0", **facts})) == name


@pytest.mark.parametrize(
    "left_out",
    [
        link(current_width=gone(Why.ABSENT)),
        link(max_width=gone(Why.ABSENT)),
        link(current_width=32),  # an invented link
        put(vendor=gone(Why.FAILED)),
        put(device=gone(Why.FAILED)),
        put(vendor="0x1af4"),
        put(vendor="0x15ad"),
        put(vendor="0x1234"),
        put(vendor="0x1414"),
        put(vendor="0x1b36"),
    ],
)
def test_siblings_in_a_guest(left_out: Change) -> None:
    guest = with_system(healthy(), hypervisor="kvm")
    narrow = where(guest, link(current_width=8), LAST_CARD)
    assert failed("pcie-link-degraded", where(narrow, left_out, FIRST_CARD)) == [f"mlx5_7 ({LAST_CARD})"]
    pair = only(narrow, FIRST_CARD, LAST_CARD)
    assert failed("pcie-link-degraded", pair) == [f"mlx5_7 ({LAST_CARD})"]
    assert failed("pcie-link-degraded", where(pair, left_out, FIRST_CARD)) == []
    assert failed("pcie-link-degraded", where(where(pair, left_out), link(current_width=8), LAST_CARD)) == []


def test_a_guest_without_two_of_a_kind_is_not_judged() -> None:
    guest = with_system(healthy(), hypervisor="kvm")
    single = with_pci(guest, devices=tuple(d for d in functions(guest) if d.address in (FIRST_CARD, "0000:81:00.0")))
    assert verdict("pcie-link-degraded", single) == "na"


def test_what_the_driver_does_not_tell_stops_no_look_at_the_bus() -> None:
    host = healthy()
    assert not isinstance(host.gpu, Missing)
    silent = replace(host, gpu=replace(host.gpu, devices=gone(Why.DENIED)))
    for unseen in (silent, replace(host, gpu=gone(Why.DENIED)), replace(host, python=gone(Why.DENIED))):
        assert verdict("gpu-pcie-link-degraded", unseen) == "pass"
        assert verdict("gpu-bar-small", where(unseen, put(bars=(1 << 24,)))) == "fail"
        assert verdict("iommu-translates-gpu-traffic", where(unseen, put(iommu_type="DMA"))) == "fail"


def test_a_copy_over_a_link_whose_best_is_not_known() -> None:
    host = where(seen("gpu-pcie-link-degraded.fail.live"), link(max_gts=gone(Why.ABSENT)), FIRST)
    assert verdict("gpu-pcie-link-degraded", host) == "pass"


def test_a_copy_that_failed_beside_a_driver_that_is_not_there() -> None:
    host = where(seen("gpu-pcie-link-degraded.fail.live"), link(**SLOW), FIRST)
    assert not isinstance(host.python, Missing) and not isinstance(host.python.live, Missing)
    live = replace(host.python.live, links=gone(Why.TIMEOUT))
    asked = replace(host, python=replace(host.python, live=live), gpu=gone(Why.ABSENT))
    assert verdict("gpu-pcie-link-degraded", asked) == "unknown"


def test_the_last_of_equal_gpus_is_compared_with_the_first() -> None:
    bare = replace(with_system(healthy(), hypervisor="kvm"), pci=gone(Why.NOT_RECORDED))
    host = with_gpus(bare, *([{"pcie_width": 16}] * 7), {"pcie_width": 8})
    assert len(failed("gpu-pcie-link-degraded", host)) == 1
