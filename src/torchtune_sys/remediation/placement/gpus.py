"""Which GPUs the ranks of a job see, in CUDA's (or HIP's) order: by PCI address, never by NVML's index.

Source: CUDA C++ Programming Guide, environment variables CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: without PCI_BUS_ID the fastest
device comes first, and equal ones follow in the order of the bus. ROCm documentation, GPU isolation techniques.
"""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.placement import GpuDevice
from torchtune_sys.model.snapshot import Snapshot, gpus_told, pci_devices_told, variables_told
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.model.visible_gpus import listed, way

_ORDER = (
    "GPUs of several models: CUDA numbers the fastest first, and which that is was not seen. Set CUDA_DEVICE_ORDER=PCI_BUS_ID"
)
_INSTANCE = "a MIG instance does not say which GPU it is a part of"


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    addresses: tuple[str, ...]
    """PCI addresses in the order in which CUDA numbers them; ``""`` where an entry is unknown."""
    candidates: tuple[str, ...] = ()
    """Among which such an entry is one."""
    note: str = ""
    """Why the order, or an entry, is not known."""


def visible(s: Snapshot, boards: Fact[tuple[GpuDevice, ...]]) -> Visible:
    """Return the GPUs of this session: as NVML tells them, else the kernel's driver (``boards``), else the bus."""
    env = variables_told(s)
    nvidia = _of_nvml(s) or known(boards, ()) or _of_bus(s, "0x10de", "nvidia")
    if not nvidia:
        amd = _of_bus(s, "0x1002", "amdgpu")
        for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
            value = next((env[name] for name in names if name in env), None)
            amd = amd if value is None else _named(value, amd)
        return Visible(addresses=tuple(board.address for board in amd))
    ordered = tuple(sorted(nvidia, key=lambda board: board.address))
    every = tuple(board.address for board in ordered)
    mixed = len({board.name for board in ordered}) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    value = env.get("CUDA_VISIBLE_DEVICES")
    if value is not None:
        return _listed(value, ordered, mixed)
    return Visible(addresses=("",) * len(every), candidates=every, note=_ORDER) if mixed else Visible(addresses=every)


def on_bus(s: Snapshot) -> tuple[str, ...]:
    """Return all GPUs of the host that a driver for computing holds, this session's or not."""
    return tuple(board.address for board in _of_bus(s, "0x10de", "nvidia") or _of_bus(s, "0x1002", "amdgpu"))


def _of_nvml(s: Snapshot) -> tuple[GpuDevice, ...]:
    gpus = gpus_told(s)
    return tuple(
        GpuDevice(address=known(gpu.pci_address, ""), name=known(gpu.name, ""), uuid=known(gpu.uuid, ""))
        for gpu in gpus
        if not gpu.lost
    )


def _of_bus(s: Snapshot, vendor: str, driver: str) -> tuple[GpuDevice, ...]:
    """In the order of the bus. A driver that could not be seen is taken for the right one; one for virtual machines, nouveau and none are not."""
    found = pci_devices_told(s)
    return tuple(
        GpuDevice(address=device.address)
        for device in found
        if known(device.vendor, "") == vendor
        and known(device.class_, "")[:4] in ("0x03", "0x12")
        and (device.driver.why is not Why.ABSENT if isinstance(device.driver, Missing) else device.driver == driver)
    )


def _named(value: str, boards: tuple[GpuDevice, ...]) -> tuple[GpuDevice, ...]:
    """AMD's lists: numbers, within those that are left; an entry that is none ends the list."""
    found: list[GpuDevice] = []
    for entry in value.split(","):
        number = _index(entry.strip(), len(boards))
        if number is None:
            break
        found.append(boards[number])
    return tuple(found)


def _index(entry: str, below: int) -> int | None:
    index = natural(entry, 5)
    return index if index is not None and index < below else None


def _listed(value: str, ordered: tuple[GpuDevice, ...], mixed: bool) -> Visible:
    """Return what CUDA_VISIBLE_DEVICES names."""
    shown = listed(value, tuple(board.uuid for board in ordered))
    if shown.repeats:
        return Visible(addresses=(), candidates=())
    not_told = _INSTANCE if way(value) == "MIG-" else "the GPUs' UUIDs were not seen"
    places = shown.places if way(value) or not mixed else (None,) * len(shown.places)
    addresses = tuple("" if place is None else ordered[place].address for place in places)
    note = "" if None not in places else not_told if way(value) else _ORDER
    return Visible(addresses=addresses, candidates=tuple(board.address for board in ordered), note=note)
