"""Access Control Services on the ways between GPUs and network cards."""

from __future__ import annotations

from typing import Any

import pytest
from pci_hosts import PORT, failed, functions, gone, healthy, put, replace, verdict, where, with_pci

from torchtune_sys.model.facts.pci import PciConfig, PciDevice
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Why

ACS = "acs-redirects-peer-traffic"
REDIRECTS = PciConfig(port_type="downstream-port", acs=("SrcValid", "ReqRedir"))
OPEN = PciConfig(port_type="downstream-port", acs=("SrcValid",))


def function(address: str, parent: str, class_: Any = "0x060400", **facts: Any) -> PciDevice:
    template = next(device for device in functions(healthy()) if device.address == PORT)
    return replace(template, **{"address": address, "parent": parent, "class_": class_, "config": OPEN, **facts})


def tree(*more: PciDevice, **facts: Any) -> Snapshot:
    """A root port, a switch with three ports, and two GPUs and a card below."""
    gpu = {"class_": "0x030200", "vendor": "0x10de", "driver": "nvidia", "iommu_type": "identity", **facts}
    card = {"class_": "0x020700", "vendor": "0x15b3", "rdma": "mlx5_0", "iommu_type": "identity", **facts}
    ports_ = [function(f"0000:0{at}:00.0", "0000:02:00.0") for at in (3, 4, 5)]
    ends = [
        function("0000:13:00.0", "0000:03:00.0", **gpu),
        function("0000:14:00.0", "0000:04:00.0", **gpu),
        function("0000:15:00.0", "0000:05:00.0", **card),
    ]
    switch = [function("0000:01:00.0", ""), function("0000:02:00.0", "0000:01:00.0")]
    return with_pci(healthy(), devices=(*switch, *ports_, *ends, *more))


def at(host: Snapshot, config: Any, *addresses: str, **facts: Any) -> Snapshot:
    return where(host, put(config=config, **facts), *addresses)


@pytest.mark.parametrize("port", ["0000:03:00.0", "0000:04:00.0", "0000:05:00.0"])
def test_each_port_between_two_peers(port: str) -> None:
    assert verdict(ACS, tree()) == "pass"
    assert failed(ACS, at(tree(), REDIRECTS, port)) == [f"bridge {port}"]
    assert failed(ACS, at(tree(), PciConfig(acs=("CmpltRedir",)), port)) == [f"bridge {port}"]
    for shared in ("0000:02:00.0", "0000:01:00.0"):
        assert verdict(ACS, at(tree(), REDIRECTS, shared)) == "pass"


@pytest.mark.parametrize(
    ("config", "facts", "expected"),
    [
        (gone(Why.DENIED), {}, "unknown"),
        (gone(Why.ABSENT), {}, "pass"),
        (gone(Why.NOT_SUPPORTED), {"asleep": True}, "pass"),
        (PciConfig(acs=gone(Why.ABSENT)), {}, "pass"),
        (PciConfig(acs=gone(Why.UNPARSED)), {}, "unknown"),
        (PciConfig(acs=()), {}, "pass"),
    ],
)
def test_ports_that_do_not_tell(config: Any, facts: dict[str, Any], expected: str) -> None:
    host = at(tree(), config, "0000:03:00.0", **facts)
    assert verdict(ACS, host) == expected
    assert failed(ACS, at(host, REDIRECTS, "0000:05:00.0")) == ["bridge 0000:05:00.0"]


def test_what_hangs_between_peers_and_is_no_bridge() -> None:
    for class_ in ("0x060000", gone(Why.FAILED)):
        odd = where(at(tree(), REDIRECTS, "0000:03:00.0"), put(class_=class_), "0000:03:00.0")
        assert verdict(ACS, odd) == "pass"


def roots(vendor: str = "0x8086", **facts: Any) -> Snapshot:
    """Three root ports of their own; GPUs below two, a card below the third."""
    host = tree(**facts)
    kept = tuple(
        replace(d, parent="", vendor=vendor) if d.address in ("0000:03:00.0", "0000:04:00.0", "0000:05:00.0") else d
        for d in functions(host)
    )
    return with_pci(host, devices=tuple(d for d in kept if d.address not in ("0000:01:00.0", "0000:02:00.0")))


@pytest.mark.parametrize(
    ("vendor", "kind", "expected"),
    [
        ("0x8086", "identity", []),
        ("0x8086", "DMA", [3, 4, 5]),
        ("0x8086", "DMA-FQ", [3, 4, 5]),
        ("0x1022", "identity", []),
        ("0x1022", gone(Why.NOT_RECORDED), [3, 4]),  # between GPUs of AMD's root ports it was seen to hang
        ("0x8086", gone(Why.NOT_RECORDED), []),
        ("0x1022", gone(Why.ABSENT), []),
        (gone(Why.FAILED), gone(Why.NOT_RECORDED), []),
    ],
)
def test_root_ports_of_their_own(vendor: Any, kind: Any, expected: list[int]) -> None:
    host = at(roots(vendor, iommu_type=kind), REDIRECTS, "0000:03:00.0", "0000:04:00.0", "0000:05:00.0")
    assert failed(ACS, host) == [f"bridge 0000:0{at_}:00.0" for at_ in expected]
    assert (verdict(ACS, host) == "na") is (not expected)


def test_one_of_two_that_is_not_translated() -> None:
    host = at(roots(iommu_type="DMA"), REDIRECTS, "0000:03:00.0", "0000:04:00.0", "0000:05:00.0")
    for plain, left in (("0000:13:00.0", [4, 5]), ("0000:14:00.0", [3, 5]), ("0000:15:00.0", [3, 4])):
        mixed = where(host, put(iommu_type="identity"), plain)
        assert failed(ACS, mixed) == [f"bridge 0000:0{port}:00.0" for port in left]
    loose = where(host, put(parent=""), "0000:13:00.0")
    assert failed(ACS, loose) == ["bridge 0000:04:00.0", "bridge 0000:05:00.0"]


def test_two_cards_have_no_gpu_between_them() -> None:
    other = function("0000:16:00.0", "0000:06:00.0", "0x020700", vendor="0x15b3", rdma="mlx5_1", iommu_type="identity")
    host = tree(function("0000:06:00.0", "0000:02:00.0"), other)
    lone = with_pci(host, devices=tuple(d for d in functions(host) if d.address not in ("0000:14:00.0", "0000:13:00.0")))
    assert verdict(ACS, at(lone, REDIRECTS, "0000:05:00.0")) == "na"
    apart = function("0000:13:00.0", "", "0x030200", vendor="0x10de", iommu_type="identity")
    beside = with_pci(lone, devices=(*functions(lone), apart))
    assert verdict(ACS, at(beside, REDIRECTS, "0000:05:00.0")) == "na"


def test_a_switch_below_a_switch() -> None:
    """PXB: two switches in a row, the lower of which holds one of the GPUs."""
    below = [function("0000:06:00.0", "0000:05:00.0"), function("0000:07:00.0", "0000:06:00.0")]
    host = where(tree(*below), put(parent="0000:07:00.0"), "0000:15:00.0")
    host = with_pci(host, devices=tuple(d for d in functions(host) if d.address != "0000:14:00.0"))
    assert failed(ACS, at(host, REDIRECTS, "0000:05:00.0")) == ["bridge 0000:05:00.0"]
    assert failed(ACS, at(host, REDIRECTS, "0000:03:00.0")) == ["bridge 0000:03:00.0"]


def test_functions_of_one_root_port_stop_no_look_at_the_others() -> None:
    beside = function("0000:12:00.0", "0000:01:00.0", "0x030200", vendor="0x10de", driver="nvidia", iommu_type="identity")
    assert failed(ACS, at(tree(beside), REDIRECTS, "0000:05:00.0")) == ["bridge 0000:05:00.0"]
