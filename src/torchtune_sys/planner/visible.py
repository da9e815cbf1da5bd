"""Which GPUs the ranks of a job see, in CUDA's order: by PCI address, never by NVML's index.

Source: CUDA C++ Programming Guide, environment variables CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: without PCI_BUS_ID the fastest
device comes first, and equal ones follow in the order of the bus.
"""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...]
    """PCI addresses in the order in which CUDA numbers them; ``""`` where an entry cannot be told."""
    note: str = ""
    """Why the order, or an entry, is not known."""


def visible(s: Snapshot) -> Visible:
    """The GPUs of this session."""
    gpus = () if isinstance(s.gpu, Missing) else tuple(gpu for gpu in known(s.gpu.devices, ()) if not gpu.lost)
    if not gpus:
        return Visible(addresses=_from_bus(s))
    env = {} if isinstance(s.session, Missing) else known(s.session.env, {})
    ordered = sorted(gpus, key=lambda gpu: known(gpu.pci_address, ""))
    addresses = tuple(known(gpu.pci_address, "") for gpu in ordered)
    listed = env.get("CUDA_VISIBLE_DEVICES")
    mixed = len({known(gpu.name, "") for gpu in gpus}) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    if listed is None:
        return _unordered(addresses) if mixed else Visible(addresses=addresses)
    return _listed([entry.strip() for entry in listed.split(",")], ordered, mixed)


def _from_bus(s: Snapshot) -> tuple[str, ...]:
    """Without NVML: the NVIDIA and AMD accelerators that the bus shows."""
    found = () if isinstance(s.pci, Missing) else known(s.pci.devices, ())
    return tuple(
        device.address
        for device in found
        if (known(device.vendor, "") == "0x10de" and known(device.class_, "").startswith("0x03"))
        or (known(device.vendor, "") == "0x1002" and known(device.class_, "").startswith("0x1200"))
    )


def _unordered(addresses: tuple[str, ...]) -> Visible:
    note = (
        "GPUs of several models: CUDA numbers the fastest first, and which that is was not seen. Set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    )
    return Visible(addresses=tuple("" for _ in addresses), note=note)


def _listed(entries: list[str], ordered: list[Gpu], mixed: bool) -> Visible:
    """What CUDA_VISIBLE_DEVICES names; an entry that names nothing hides itself and all that follow."""
    found: list[str] = []
    note = ""
    for entry in entries:
        if entry.upper().startswith("MIG-"):
            address, note = _of_instance(entry, ordered), note
            note = note if address else "a MIG instance does not say which GPU it is a part of"
        elif entry.upper().startswith("GPU-"):
            fitting = [gpu for gpu in ordered if known(gpu.uuid, "").lower().startswith(entry.lower())]
            if len(fitting) != 1:
                break
            address = known(fitting[0].pci_address, "")
        elif entry.isdecimal() and int(entry) < len(ordered):
            address = "" if mixed else known(ordered[int(entry)].pci_address, "")
            note = _unordered(()).note if mixed else note
        else:
            break
        found.append(address)
    return Visible(addresses=tuple(found), note=note)


def _of_instance(entry: str, ordered: list[Gpu]) -> str:
    """Drivers before R470 name an instance MIG-GPU-<uuid>/<gi>/<ci>; later ones give it a UUID of its own."""
    whole = entry[4:].partition("/")[0].lower()
    return next((known(gpu.pci_address, "") for gpu in ordered if known(gpu.uuid, "?").lower() == whole), "")
