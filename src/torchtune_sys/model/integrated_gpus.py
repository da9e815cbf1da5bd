"""GPUs that are part of a processor. They do not count as training GPUs."""

from __future__ import annotations

from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.values import known

_INTEL_CARDS = ((0x5690, 0x56C2), (0x0B69, 0x0B6E), (0x0BD0, 0x0BE5), (0xE200, 0xE22F))
"""Numbers of the cards for which torch has code: Arc A and Flex, Data Center GPU Max, Arc B (Linux include/drm/intel/pciids.h: INTEL_DG2_IDS, INTEL_ATS_M_IDS, INTEL_PVC_IDS, INTEL_BMG_IDS). All other graphics of Intel's belong to a
processor or chipset, also where they have a second function, or a virtual machine shows a part of them at another address than 0000:00:02.0."""
_STRIX_HALO = 0x1586
"""An exception: ROCm supports it for training, with up to 128 GB (https://rocm.docs.amd.com, Ryzen compatibility)."""


def is_integrated(vendor: str, device: str) -> bool:
    """Return whether a GPU is part of a processor. AMD numbers its processors' graphics apart from its cards, which are between 0x6600 and 0x7fff (AMD_IS_APU in the kernel's
    drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c; https://pci-ids.ucw.cz/read/PC/1002).

    >>> is_integrated("0x1002", "0x15bf"), is_integrated("0x1002", "0x744c"), is_integrated("0x8086", "0xa7a0"), is_integrated("0x8086", "0xe20b")
    (True, False, True, False)
    """
    if vendor not in ("0x8086", "0x1002"):
        return False
    try:
        number = int(device, 16)
    except ValueError:
        return vendor == "0x8086"
    if vendor == "0x8086":
        return not any(first <= number <= last for first, last in _INTEL_CARDS)
    return number != _STRIX_HALO and (number < 0x2000 or 0x9600 <= number < 0xA000)


def is_intel_card(device: PciDevice) -> bool:
    """Return whether it is a GPU of Intel's, and not the graphics of a processor."""
    display = device.vendor == "0x8086" and known(device.class_, "")[2:4] == "03"
    return display and not is_integrated("0x8086", known(device.device, ""))
