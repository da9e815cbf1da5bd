"""PCI functions from both sides of each mark: what is left out, what cannot be told, and that the next one is judged all the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.network import RdmaDevice
from torchtune_sys.model.facts.pci import PciConfig, PciDevice, PciErrorGrowth, PciErrors, PciFacts
from torchtune_sys.model.facts.python import LoadedLink
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.pci_paths import is_gpu
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import pci, pci_seen

RULES: dict[str, Rule] = {rule.id: rule for rule in pci.RULES}
FIRST, LAST = "0000:1b:00.0", "0000:df:00.0"
FIRST_CARD, LAST_CARD = "0000:1a:00.0", "0000:de:00.0"
PORT = "0000:17:01.0"
replace = msgspec.structs.replace
seen = cache(load)
Change = Callable[[PciDevice], PciDevice]


def gone(why: Why) -> Missing:
    return Missing(why, "test")


def pci_facts(host: Snapshot) -> PciFacts:
    assert not isinstance(host.pci, Missing)
    return host.pci


def functions(host: Snapshot) -> tuple[PciDevice, ...]:
    found = pci_facts(host).devices
    assert not isinstance(found, Missing)
    return found


def with_pci(host: Snapshot, **facts: Any) -> Snapshot:
    return replace(host, pci=replace(pci_facts(host), **facts))


def where(host: Snapshot, change: Change, *addresses: str) -> Snapshot:
    """These functions (all, without one named) changed."""
    chosen = (change(device) if device.address in addresses or not addresses else device for device in functions(host))
    return with_pci(host, devices=tuple(chosen))


def only(host: Snapshot, *addresses: str) -> Snapshot:
    """The host with no GPU or card but these."""
    alone = (d for d in functions(host) if d.address in addresses or not (is_gpu(d) or d.rdma))
    return with_pci(host, devices=tuple(alone))


def link(**facts: Any) -> Change:
    return lambda device: replace(device, link=replace(device.link, **facts))


def put(**facts: Any) -> Change:
    return lambda device: replace(device, **facts)


def gpus(host: Snapshot) -> tuple[Gpu, ...]:
    assert not isinstance(host.gpu, Missing) and not isinstance(host.gpu.devices, Missing)
    return host.gpu.devices


def with_gpus(host: Snapshot, *changes: dict[str, Any]) -> Snapshot:
    """The driver's GPUs changed, the first by the first …"""
    old = gpus(host)
    changed = (replace(gpu, **change) for gpu, change in zip(old, changes, strict=False))
    assert not isinstance(host.gpu, Missing)
    return replace(host, gpu=replace(host.gpu, devices=(*changed, *old[len(changes) :])))


def with_system(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.system, Missing)
    return replace(host, system=replace(host.system, **facts))


def with_intent(host: Snapshot, **intent: Any) -> Snapshot:
    return replace(host, intent=Intent(**intent))


def judged(rule: str, host: Snapshot) -> Result:
    return engine.judge(host, [RULES[rule]])[0]


def verdict(rule: str, host: Snapshot) -> str:
    return judged(rule, host).verdict.value


def failed(rule: str, host: Snapshot) -> list[str]:
    return [item.subject for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


def healthy() -> Snapshot:
    return seen("healthy")


def epyc() -> Snapshot:
    host = healthy()
    assert not isinstance(host.cpu, Missing)
    return replace(host, cpu=replace(host.cpu, model="AMD EPYC 9654 96-Core Processor"))


LEFT_OUT = [
    *(
        ("gpu-pcie-link-degraded", change, link(current_width=8), expected)
        for change, expected in (
            (link(current_width=gone(Why.NOT_SUPPORTED)), "na"),
            (link(current_width=gone(Why.ABSENT)), "na"),
            (link(current_width=gone(Why.DENIED)), "unknown"),
            (link(max_width=gone(Why.DENIED)), "na"),
            (put(parent=""), "na"),
            (put(parent="0000:ff:00.0"), "na"),
        )
    ),
    *(
        ("gpu-slot-narrower-than-card", change, link(max_width=32), expected)
        for change, expected in (
            (link(max_width=gone(Why.NOT_SUPPORTED)), "na"),
            (link(max_width=gone(Why.DENIED)), "unknown"),
            (put(parent=""), "na"),
        )
    ),
    *(
        ("gpu-bar-small", change, put(bars=(1 << 24, 256 << 20)), expected)
        for change, expected in (
            (put(bars=()), "na"),
            (put(bars=gone(Why.NOT_SUPPORTED)), "na"),
            (put(bars=gone(Why.ABSENT)), "na"),
            (put(bars=gone(Why.DENIED)), "unknown"),
        )
    ),
    *(
        (rule, change, put(config=PciConfig(max_read_request_bytes=256, relaxed_ordering=False)), expected)
        for rule in ("pcie-read-request-small", "pcie-relaxed-ordering-off")
        for change, expected in (
            (put(config=gone(Why.NOT_SUPPORTED)), "na"),
            (put(config=gone(Why.ABSENT)), "na"),
            (put(config=gone(Why.DENIED)), "unknown"),
        )
    ),
    *(
        ("iommu-translates-gpu-traffic", change, put(iommu_type="DMA"), expected)
        for change, expected in (
            (put(iommu_type=gone(Why.NOT_SUPPORTED)), "na"),
            (put(iommu_type=gone(Why.ABSENT), iommu_group="31"), "na"),
            (put(iommu_type=gone(Why.DENIED)), "unknown"),
            (put(iommu_type=gone(Why.NOT_RECORDED), iommu_group="31"), "unknown"),
            (put(iommu_type=gone(Why.NOT_RECORDED), iommu_group=gone(Why.ABSENT)), "unknown"),
            (put(iommu_type=gone(Why.ABSENT), iommu_group=gone(Why.ABSENT)), "pass"),  # there is no IOMMU
        )
    ),
    *(
        (rule, change, put(errors=PciErrors(correctable={"RxErr": 10**9}, nonfatal={}, fatal={"SDES": 1})), expected)
        for rule in ("pcie-errors-uncorrectable", "pcie-errors-correctable")
        for change, expected in (
            (put(errors=gone(Why.NOT_SUPPORTED)), "na"),
            (put(errors=gone(Why.ABSENT)), "na"),
            (put(errors=gone(Why.DENIED)), "unknown"),
            (put(errors=gone(Why.NOT_RECORDED)), "unknown"),
            (put(errors=gone(Why.FAILED)), "unknown"),
        )
    ),
]


@pytest.mark.parametrize(("rule", "left_out", "bad", "expected"), LEFT_OUT)
def test_what_is_left_out_stops_nobody(rule: str, left_out: Change, bad: Change, expected: str) -> None:
    """Of all functions it is what it is; of some, the others are judged: those before and those behind."""
    host = with_system(epyc(), cmdline=())
    ends = [device.address for device in functions(host) if device.class_ != "0x060400"]
    assert verdict(rule, where(host, left_out, *ends)) == expected
    first, last = (FIRST_CARD, LAST_CARD) if rule in ("pcie-read-request-small", "pcie-relaxed-ordering-off") else (FIRST, LAST)
    for out, wrong in ((first, last), (last, first)):
        assert [name for name in failed(rule, where(where(host, left_out, out), bad, wrong)) if wrong in name]
    rest = verdict(rule, where(host, left_out, first))
    assert rest == ("unknown" if expected == "unknown" and not rule.startswith("pcie-errors") else rest) and rest != "na"


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
    assert verdict("gpu-pcie-link-degraded", with_gpus(host, *([{"pcie_width": 1}] * 8))) == "pass"


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
    ("largest", "expected"), [(256 << 20, "fail"), ((256 << 20) + 1, "pass"), (512 << 20, "pass"), (1 << 24, "fail")]
)
def test_regions_of_gpus(largest: int, expected: str) -> None:
    assert verdict("gpu-bar-small", where(healthy(), put(bars=(1 << 24, largest)), FIRST)) == expected


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ((FIRST,), "na"),
        ((FIRST, LAST), "fail"),
        ((FIRST, FIRST_CARD), "fail"),
        ((), "na"),
    ],
)
def test_regions_matter_to_who_has_a_neighbour(here: tuple[str, ...], expected: str) -> None:
    assert verdict("gpu-bar-small", where(only(healthy(), *here), put(bars=(1 << 24,)))) == expected
    assert verdict("iommu-translates-gpu-traffic", where(only(healthy(), *here), put(iommu_type="DMA"))) == expected


def test_a_geforce_has_a_small_region_by_design() -> None:
    small = where(healthy(), put(bars=(1 << 28,)), FIRST, LAST)
    geforce = {"name": "NVIDIA GeForce RTX 4090"}
    assert failed("gpu-bar-small", with_gpus(small, geforce)) == [f"GPU {LAST}"]
    assert verdict("gpu-bar-small", with_gpus(small, *([geforce] * 8))) == "na"
    assert len(failed("gpu-bar-small", replace(small, gpu=gone(Why.DENIED)))) == 2
    assert len(failed("gpu-bar-small", with_gpus(small, {"name": gone(Why.DENIED)}))) == 2


def cards(host: Snapshot, **port: Any) -> Snapshot:
    """The first card's ports changed."""
    assert not isinstance(host.network, Missing) and not isinstance(host.network.rdma, Missing)
    first, *others = host.network.rdma
    changed: RdmaDevice = replace(first, ports=tuple(replace(item, **port) for item in first.ports))
    return replace(host, network=replace(host.network, rdma=(changed, *others)))


@pytest.mark.parametrize(("rule", "least"), [("pcie-read-request-small", 200.0), ("pcie-relaxed-ordering-off", 100.0)])
def test_cards_that_are_fast_enough_to_matter(rule: str, least: float) -> None:
    strict = where(epyc(), put(config=PciConfig(max_read_request_bytes=128, relaxed_ordering=False)), FIRST_CARD)
    loose = where(epyc(), put(config=PciConfig(max_read_request_bytes=4096, relaxed_ordering=True)), FIRST_CARD)
    assert verdict(rule, cards(strict, rate_gbps=least)) == "fail"
    assert verdict(rule, cards(strict, rate_gbps=least - 1)) == "pass"
    assert verdict(rule, cards(strict, rate_gbps=gone(Why.DENIED))) == "unknown"
    assert verdict(rule, cards(loose, rate_gbps=gone(Why.DENIED))) == "pass"
    assert verdict(rule, cards(strict, rate_gbps=gone(Why.NOT_SUPPORTED))) == "pass"
    assert verdict(rule, only(cards(strict, rate_gbps=gone(Why.ABSENT)), FIRST, FIRST_CARD)) == "na"
    assert verdict(rule, only(strict, FIRST)) == "na"
    assert verdict(rule, only(strict, FIRST_CARD)) == "na"
    assert verdict(rule, where(strict, put(class_="0x120000"), FIRST_CARD)) == "pass"  # no network card
    assert failed(rule, strict) == [f"mlx5_0 ({FIRST_CARD})"]
    assert verdict(rule, replace(strict, network=gone(Why.DENIED))) == "na"
    unread = where(epyc(), put(config=PciConfig()), FIRST_CARD)
    assert verdict(rule, unread) == "unknown"
    enough = where(epyc(), put(config=PciConfig(max_read_request_bytes=512, relaxed_ordering=True)), FIRST_CARD)
    assert verdict(rule, cards(enough, rate_gbps=gone(Why.DENIED))) == "pass"


@pytest.mark.parametrize(("size", "expected"), [(511, "fail"), (512, "pass"), (4096, "pass")])
def test_sizes_of_read_requests(size: int, expected: str) -> None:
    host = where(healthy(), put(config=PciConfig(max_read_request_bytes=size)), FIRST_CARD)
    assert verdict("pcie-read-request-small", host) == expected


def test_order_matters_on_epyc_alone() -> None:
    strict = put(config=PciConfig(relaxed_ordering=False))
    assert verdict("pcie-relaxed-ordering-off", where(epyc(), strict, FIRST_CARD)) == "fail"
    assert verdict("pcie-relaxed-ordering-off", where(healthy(), strict, FIRST_CARD)) == "na"


@pytest.mark.parametrize("name", ["class_", "vendor"])
def test_a_function_of_unknown_kind_may_be_a_gpu_that_the_file_lacks(name: str) -> None:
    lacking = seen("topology-file-of-another-machine.fail.missing-gpu")
    assert verdict("topology-file-of-another-machine", lacking) == "fail"
    assert verdict("topology-file-of-another-machine", where(lacking, put(**{name: gone(Why.FAILED)}), LAST)) == "unknown"
    assert verdict("topology-file-of-another-machine", where(lacking, put(**{name: gone(Why.FAILED)}), FIRST)) == "fail"


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_kernel_without_pci_is_not_judged_and_one_that_was_not_seen_is_unknown(rule: str) -> None:
    host = with_intent(epyc(), nodes=2)
    assert verdict(rule, with_pci(host, devices=gone(Why.ABSENT))) == "na"
    assert verdict(rule, with_pci(host, devices=gone(Why.DENIED))) in ("unknown", "na")


@pytest.mark.parametrize(
    ("errors", "bad", "words"),
    [
        ({}, False, ""),
        ({"nonfatal": {"UnsupReq": 5}}, False, ""),
        ({"nonfatal": {"CmpltTO": 2}}, True, "2 CmpltTO"),
        ({"fatal": {"SDES": 3}, "nonfatal": {"UnsupReq": 1}}, True, "3 SDES (fatal)"),
        ({"fatal": {"UnsupReq": 1}}, True, "1 UnsupReq (fatal)"),
        ({"correctable": {"RxErr": 10**9}}, False, ""),
    ],
)
def test_errors_that_lost_something(errors: dict[str, Any], bad: bool, words: str) -> None:
    counted = PciErrors(**{"correctable": {}, "nonfatal": {}, "fatal": {}, **errors})
    result = judged("pcie-errors-uncorrectable", where(healthy(), put(errors=counted), FIRST))
    assert (result.verdict is Verdict.FAIL) is bad
    assert not bad or words in next(item.seen for item in result.evidence if item.verdict is Verdict.FAIL)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [(kind, True) for kind in ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout")]
    + [
        (kind, False)
        for kind in (
            "NonFatalErr",
            "CorrIntErr",
            "HeaderOF",
            "Advisory Non-Fatal",
            "Corrected Internal Error",
            "Header Log Overflow",
        )
    ],
)
def test_errors_of_the_link(kind: str, bad: bool) -> None:
    counted = PciErrors(correctable={kind: 10**9}, nonfatal={}, fatal={})
    assert (verdict("pcie-errors-correctable", where(healthy(), put(errors=counted), FIRST)) == "fail") is bad


def test_the_rate_of_errors_needs_a_time_and_their_kind_none() -> None:
    counted = PciErrors(correctable={"RxErr": 110}, nonfatal={}, fatal={"SDES": 1})
    host = with_system(where(healthy(), put(errors=counted), FIRST), uptime_s=gone(Why.DENIED))
    assert verdict("pcie-errors-correctable", host) == "unknown"
    assert verdict("pcie-errors-uncorrectable", host) == "fail"
    assert verdict("pcie-errors-correctable", with_system(host, uptime_s=1.0)) == "fail"  # a minute at least
    long = {"RxErr": 8 * 60 * 24}
    counted = PciErrors(correctable=long, nonfatal={}, fatal={})
    assert verdict("pcie-errors-correctable", with_system(where(host, put(errors=counted)), uptime_s=86400.0)) == "pass"


@pytest.mark.parametrize(
    ("class_", "told"), [("0x030200", True), ("0x120000", True), ("0x030000", True), ("0x020000", False), ("0x060400", False)]
)
def test_good_links_of_gpus_are_told(class_: str, told: bool) -> None:
    clean = PciErrors(correctable={}, nonfatal={}, fatal={})
    host = where(healthy(), put(class_=class_, errors=clean, vendor="0x8086"), "0000:04:00.0")
    subjects = [item.subject for item in judged("pcie-errors-uncorrectable", host).evidence]
    assert any("0000:04:00.0" in subject for subject in subjects) is told


@pytest.mark.parametrize(
    ("gained", "seconds", "expected"),
    [
        (1, 1.0, "pass"),  # may be chance
        (2, 1.0, "fail"),
        (2, 15.0, "pass"),  # eight a minute
        (2, 14.9, "fail"),
        (2, 15.1, "pass"),
        (8, 60.0, "pass"),
        (9, 60.0, "fail"),
        (2, 0.0, "fail"),
    ],
)
def test_errors_of_the_last_second(gained: int, seconds: float, expected: str) -> None:
    growth = PciErrorGrowth(seconds=seconds, correctable={"0000:aa:00.0": 99, FIRST: gained})
    assert verdict("pcie-errors-correctable", with_pci(healthy(), growth=growth)) == expected


@pytest.mark.parametrize(
    ("why", "expected"),
    [(why, "pass") for why in (Why.NOT_SUPPORTED, Why.NOT_RECORDED, Why.ABSENT)]
    + [(why, "unknown") for why in (Why.DENIED, Why.FAILED, Why.UNPARSED, Why.TIMEOUT)],
)
def test_a_watch_that_failed_is_unknown(why: Why, expected: str) -> None:
    assert verdict("pcie-errors-correctable", with_pci(healthy(), growth=gone(why))) == expected


def geforce(host: Snapshot, name: Any, capability: Any) -> Snapshot:
    return with_gpus(where(host, put(iommu_type="DMA")), *([{"name": name, "compute_capability": capability}] * 8))


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


def test_counters_that_one_device_hides_leave_the_others_judged() -> None:
    hidden = where(healthy(), put(errors=gone(Why.DENIED)), FIRST)
    assert verdict("pcie-errors-uncorrectable", hidden) == "pass"
    assert verdict("pcie-errors-uncorrectable", replace(healthy(), system=gone(Why.DENIED))) == "pass"
    clean = PciErrors(correctable={}, nonfatal={}, fatal={})
    odd = where(healthy(), put(class_=gone(Why.FAILED), errors=clean), "0000:04:00.0")
    assert verdict("pcie-errors-uncorrectable", odd) == "pass"


def test_no_topology_file() -> None:
    assert verdict("topology-file-of-another-machine", healthy()) == "na"
    refused = with_pci(healthy(), topology_file=gone(Why.DENIED))
    assert verdict("topology-file-of-another-machine", refused) == "unknown"
