"""PCI devices and their links."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class PciLink(msgspec.Struct, frozen=True, kw_only=True):
    """Link of a function as sysfs gives it; speeds in GT/s, widths in lanes."""

    current_gts: Fact[float]
    max_gts: Fact[float]
    current_width: Fact[int]
    max_width: Fact[int]


class PciDevice(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    address: str
    """``0000:18:00.0``."""
    class_: Fact[str]
    """Six hex digits with 0x: ``0x030200``."""
    vendor: Fact[str]
    device: Fact[str]
    subsystem_vendor: Fact[str]
    subsystem_device: Fact[str]
    numa_node: Fact[int]
    """-1 where the firmware names none."""
    driver: Fact[str]
    """Name of the bound kernel driver; ABSENT if none is bound."""
    link: PciLink
    parent: str
    """Address of the bridge above; ``""`` for a root device."""
    iommu_group: Fact[str]


class PciFacts(msgspec.Struct, frozen=True, kw_only=True):
    devices: Fact[tuple[PciDevice, ...]]
    """By address. Missing(ABSENT) where the kernel has no PCI."""
