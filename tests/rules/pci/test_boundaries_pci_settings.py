"""PCI functions from both sides of each mark: what is left out, what cannot be told, and that the next one is judged all the same (pci_settings)."""

from __future__ import annotations

from typing import Any

import pytest
from pci_hosts import (
    FIRST,
    FIRST_CARD,
    LAST,
    LAST_CARD,
    RULES,
    Change,
    failed,
    functions,
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

from torchtune_sys.model.facts.network import RdmaDevice
from torchtune_sys.model.facts.pci import PciConfig, PciErrors
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why


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
            (put(parent=""), "pass"),  # beside seven others of its model
            (put(parent="0000:ff:00.0"), "pass"),
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
            (put(iommu_type=gone(Why.ABSENT), iommu_group="31"), "unknown"),  # each kernel since 5.4 has it
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


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("Quadro RTX 8000", (7, 5), "na"),  # Resizable BAR came with Ampere
        ("NVIDIA TITAN RTX", (7, 5), "na"),
        ("Quadro P2000", (6, 1), "na"),
        ("Quadro GV100", (7, 0), "fail"),  # the chip of V100
        ("Tesla V100-PCIE-16GB", (7, 0), "fail"),
        ("NVIDIA RTX A4000", (8, 6), "fail"),
        ("NVIDIA T4G", (7, 5), "na"),
    ],
)
def test_cards_before_ampere_cannot_resize_their_region(name: str, capability: tuple[int, int], expected: str) -> None:
    small = only(where(healthy(), put(bars=(1 << 28,)), FIRST, LAST), FIRST, LAST)
    assert verdict("gpu-bar-small", with_gpus(small, *([{"name": name, "compute_capability": capability}] * 8))) == expected


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_kernel_without_pci_is_not_judged_and_one_that_was_not_seen_is_unknown(rule: str) -> None:
    host = with_intent(epyc(), nodes=2)
    assert verdict(rule, with_pci(host, devices=gone(Why.ABSENT))) == "na"
    assert verdict(rule, with_pci(host, devices=gone(Why.DENIED))) in ("unknown", "na")


def test_no_topology_file() -> None:
    assert verdict("topology-file-of-another-machine", healthy()) == "na"
    refused = with_pci(healthy(), topology_file=gone(Why.DENIED))
    assert verdict("topology-file-of-another-machine", refused) == "unknown"


def test_a_card_in_display_mode_is_told_of_its_mode() -> None:
    workstation = {"name": "NVIDIA RTX A6000"}
    small = with_gpus(where(healthy(), put(bars=(1 << 28,)), FIRST, LAST), *([workstation] * 8))
    assert verdict("gpu-bar-small", only(small, FIRST, LAST)) == "na"
    (found, *_) = judged("gpu-bar-small", small).evidence
    assert "displaymodeselector" in str(found.fix)
    other = with_gpus(small, *([{"name": "NVIDIA A100-PCIE-40GB"}] * 8))
    assert judged("gpu-bar-small", other).evidence[0].fix == ()
