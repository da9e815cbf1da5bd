"""GPUs and accelerators that are not NVIDIA's, as the PCI bus names them: a host is called what it is."""

from __future__ import annotations

from collections import Counter

from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.integrated_gpus import is_integrated, is_intel_card
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, absent, known

_NAMES = {
    ("0x1002", "0x740c"): "AMD Instinct MI250X",
    ("0x1002", "0x7408"): "AMD Instinct MI250X",
    ("0x1002", "0x740f"): "AMD Instinct MI210",
    ("0x1002", "0x738c"): "AMD Instinct MI100",
    ("0x1002", "0x74a0"): "AMD Instinct MI300A",
    ("0x1002", "0x74a1"): "AMD Instinct MI300X",
    ("0x1002", "0x74b5"): "AMD Instinct MI300X (virtual function)",
    ("0x1002", "0x74a5"): "AMD Instinct MI325X",
    ("0x1da3", "0x1000"): "Habana Gaudi",
    ("0x1da3", "0x1010"): "Habana Gaudi",
    ("0x1da3", "0x1020"): "Intel Gaudi 2",
    ("0x1da3", "0x1060"): "Intel Gaudi 3",
}
"""(vendor, device) as https://pci-ids.ucw.cz lists them."""

_DRIVERS = {"amdgpu": "AMD GPU", "habanalabs": "Gaudi accelerator", "xe": "Intel GPU", "i915": "Intel GPU"}


def accelerators(seen: Snapshot) -> list[str]:
    """Return ``8 x AMD Instinct MI300X``, then the kernel's driver of them; empty where there is none."""
    if isinstance(seen.pci, Missing):
        return []
    found = [device for device in known(seen.pci.devices, ()) if _is_one(device)]
    names = Counter(_NAMES.get(_ids(device)) or _DRIVERS[known(device.driver, "xe")] for device in found)
    drivers = dict.fromkeys(known(device.driver, "") for device in found)
    served = (f"kernel driver {name}" if name else "no kernel driver" for name in drivers)
    return [*(f"{count} x {name}" for name, count in names.items()), *served]


def _is_one(device: PciDevice) -> bool:
    class_ = known(device.class_, "")
    unserved = absent(device.driver) and (_ids(device) in _NAMES or is_intel_card(device))
    wanted = class_[2:4] in ("03", "12") and (unserved or known(device.driver, "") in _DRIVERS)
    return wanted and not is_integrated(*_ids(device))


def _ids(device: PciDevice) -> tuple[str, str]:
    return known(device.vendor, ""), known(device.device, "")
