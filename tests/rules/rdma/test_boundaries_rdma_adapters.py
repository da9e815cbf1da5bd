"""RDMA adapters on the PCI bus that no driver took, from both sides of each mark (rdma)."""

from __future__ import annotations

from typing import Any

import pytest
from rdma_hosts import GOOD, NOTHING, REFUSED, cards, facts, net, replace, seen, verdict

from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.values import Missing


def on_bus(**change: Any) -> tuple[PciDevice, ...]:
    host = seen("healthy")
    assert not isinstance(host.pci, Missing) and not isinstance(host.pci.devices, Missing)
    first = next(device for device in host.pci.devices if device.rdma)
    return (replace(first, **change),)


LOADED = "rdma-driver-not-loaded"
EFA = {"class_": "0x020000", "vendor": "0x1d0f", "device": "0xefa2"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "fail"),
        (EFA, "fail"),
        ({**EFA, "device": "0xec20"}, "na"),  # Amazon's ordinary network card
        ({**EFA, "vendor": "0x15b3"}, "na"),
        ({**EFA, "vendor": REFUSED}, "na"),
        ({**EFA, "device": REFUSED}, "na"),
        ({"class_": "0x020000"}, "na"),
        ({"class_": REFUSED}, "na"),
        ({"driver": "vfio-pci"}, "na"),
        ({"driver": NOTHING}, "fail"),
    ],
)
def test_adapters_without_a_driver(change: dict[str, Any], expected: str) -> None:
    host = net(())
    assert not isinstance(host.pci, Missing)
    bus = replace(host, pci=replace(host.pci, devices=on_bus(**change)))
    assert verdict(LOADED, bus) == expected
    with_device = replace(bus, network=replace(facts(bus), rdma=cards(GOOD)))
    assert verdict(LOADED, with_device) == "pass"
    absent = replace(bus, network=replace(facts(bus), rdma=NOTHING))
    assert verdict(LOADED, absent) == expected
    assert verdict(LOADED, replace(bus, pci=replace(host.pci, devices=NOTHING))) == "na"
    assert verdict(LOADED, replace(bus, pci=replace(host.pci, devices=REFUSED))) == "unknown"
