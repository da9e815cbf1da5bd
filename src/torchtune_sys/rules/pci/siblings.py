"""Links compared with those of like devices, where the slots cannot be seen: in virtual machines, and below ports that tell nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.rule import Evidence, Verdict
from torchtune_sys.model.values import Missing
from torchtune_sys.rules.pci import common as pci_seen

_EMULATED = ("0x1b36", "0x1af4", "0x1234", "0x15ad", "0x1414")
"""QEMU, virtio, Bochs, VMware, Microsoft: their links are invented."""


def narrower(devices: Iterable[PciDevice]) -> Iterator[Evidence]:
    """Yield evidence for each device that has a sibling: same vendor and model, same widest link of its own.

    A device that is passed through shows the link that it really has, whatever the hypervisor makes of the port above.
    """
    groups: dict[tuple[str, str, int], list[tuple[PciDevice, int]]] = {}
    for device in devices:
        now, most = device.link.current_width, device.link.max_width
        if (
            isinstance(now, Missing)
            or isinstance(most, Missing)
            or isinstance(device.vendor, Missing)
            or isinstance(device.device, Missing)
        ):
            continue
        if device.vendor not in _EMULATED and now <= most:
            groups.setdefault((device.vendor, device.device, most), []).append((device, now))
    for group in groups.values():
        widest = max(now for _, now in group)
        for device, now in group if len(group) > 1 else ():
            yield Evidence(
                subject=pci_seen.name(device),
                seen=f"x{now}",
                wanted=f"x{widest} as others of its model here",
                verdict=Verdict.FAIL if now < widest else Verdict.PASS,
                source=f"/sys/bus/pci/devices/{device.address}/current_link_width",
            )
