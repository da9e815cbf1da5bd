"""Compute the distance between PCI functions, by NCCL's rules.

Restated from NCCL 2.30 (src/graph/xml.cc ncclTopoGetXmlFromSys, src/graph/topo.cc, src/graph/paths.cc ncclTopoSetPaths): a function hangs
below the function two levels up, which is the upstream port of a switch, or else below the NUMA node that sysfs names for it. One such
switch in common is PIX, several PXB, the same NUMA node PHB, anything else SYS. NCCL has no class NODE: that is nvidia-smi's
word for two host bridges of one NUMA node, which NCCL counts as PHB.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciDevice, PciDistance
from torchtune_sys.model.values import Missing, Why

CLASSES = ("PIX", "PXB", "PHB", "SYS")
"""From near to far."""


def is_gpu(device: PciDevice) -> bool:
    """Tell whether it is a display controller or processing accelerator of NVIDIA or AMD."""
    if isinstance(device.class_, Missing) or isinstance(device.vendor, Missing):
        return False
    return device.vendor in ("0x10de", "0x1002") and (device.class_[2:4] == "03" or device.class_[2:6] == "1200")


def perhaps_gpu(class_: Fact[str], vendor: Fact[str]) -> Missing | None:
    """Return why nobody can tell whether a function is a GPU; None where it is known. One without files (ABSENT) was pulled out just now."""
    if not isinstance(class_, Missing) and class_[2:4] not in ("03", "12"):
        return None
    unread = class_ if isinstance(class_, Missing) else vendor
    return unread if isinstance(unread, Missing) and unread.why is not Why.ABSENT else None


def for_guests(driver: Fact[str]) -> bool:
    """Return whether a driver only keeps a function for virtual machines: VFIO's, the variants of it that vendors make, and Xen's.

    Source: Linux drivers/vfio/pci, drivers/xen/xen-pciback (pciback), drivers/pci/pci-stub.c.

    >>> [for_guests(name) for name in ("vfio-pci", "nvgrace_gpu_vfio_pci", "pciback", "nvidia")]
    [True, True, True, False]
    """
    return not isinstance(driver, Missing) and ("vfio" in driver or driver in ("pciback", "xen-pciback", "pci-stub"))


def is_network(device: PciDevice) -> bool:
    """Return whether a class is Ethernet (0200) or InfiniBand (0207)."""
    return not isinstance(device.class_, Missing) and device.class_[2:6] in ("0200", "0207")


def distances(devices: tuple[PciDevice, ...], levels: int = 2) -> tuple[PciDistance, ...]:
    """Return the distances between each two GPUs, and each GPU and each RDMA device, in the order given.

    ``levels``: how many functions lie between a device and the next switch's; 1 where the tree is NCCL's own, of switches alone.
    """
    by_address = {device.address: device for device in devices}
    gpus = [device for device in devices if is_gpu(device)]
    cards = [device for device in devices if device.rdma]
    found: list[PciDistance] = []
    pairs = ((gpu, other) for position, gpu in enumerate(gpus) for other in chain(islice(gpus, position + 1, None), cards))
    for gpu, other in islice(pairs, MOST_PAIRS):
        path = distance(gpu, other, by_address, levels)
        if path:
            found.append(PciDistance(gpu=gpu.address, other=other.address, path=path, rdma=other.rdma))
    return tuple(found)


_LEVELS = 32
"""Bridges above each other: a path from a root port through three switches has seven."""
MOST_PAIRS = 20_000
"""Pairs of devices that are looked at: 16 GPUs and a thousand functions of network cards are 16,000."""


def distance(one: PciDevice, other: PciDevice, devices: Mapping[str, PciDevice], levels: int = 2) -> str:
    """Return one of CLASSES; ``""`` where the NUMA node that would decide was not read."""
    first, first_top = _switches(one, devices, levels)
    second, second_top = _switches(other, devices, levels)
    common = next((switch for switch in first if switch in second), None)
    if common is not None:
        return "PIX" if first.index(common) == 0 and second.index(common) == 0 else "PXB"
    ours, theirs = first_top.numa_node, second_top.numa_node
    if isinstance(ours, Missing) or isinstance(theirs, Missing):
        return ""
    return "PHB" if ours == theirs else "SYS"


def above(device: PciDevice, devices: Mapping[str, PciDevice]) -> list[PciDevice]:
    """Return the bridges above a function, the nearest first: a report may have any number of them, or a circle."""
    found: list[PciDevice] = []
    seen = {device.address}
    while device.parent and device.parent not in seen and device.parent in devices and len(found) < _LEVELS:
        device = devices[device.parent]
        seen.add(device.address)
        found.append(device)
    return found


def _switches(device: PciDevice, devices: Mapping[str, PciDevice], levels: int) -> tuple[list[str], PciDevice]:
    """Return the switches above (their upstream ports, the nearest first), and the function whose NUMA node counts."""
    nodes = [device, *above(device, devices)][::levels]
    return [node.address for at, node in enumerate(nodes) if at and not _inner_level(nodes, at)], nodes[-1]


def _inner_level(nodes: list[PciDevice], at: int) -> bool:
    """Whether NCCL takes this node and the one above for one Broadcom switch, which shows two levels in base mode."""
    if at + 1 >= len(nodes):
        return False
    generation = _broadcom(nodes[at + 1], 0)
    return bool(generation) and _broadcom(nodes[at], 1) == generation


def _broadcom(device: PciDevice, level: int) -> int:
    words = (device.vendor, device.device, device.subsystem_vendor, device.subsystem_device)
    texts = [word for word in words if not isinstance(word, Missing)]
    if len(texts) < 4 or texts[0] != "0x1000" or texts[2] != "0x1000":
        return 0
    if texts[1] == "0xc010" and texts[3].startswith("0xa"):
        return 4
    return 5 if texts[1] == "0xc030" and texts[3].startswith(f"0x{level}") else 0
