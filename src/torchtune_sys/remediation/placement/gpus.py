"""Which GPUs the ranks of a job see, in CUDA's (or HIP's) order: by PCI address, never by NVML's index.

Source: CUDA C++ Programming Guide, environment variables CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: without PCI_BUS_ID the fastest
device comes first, and equal ones follow in the order of the bus. ROCm documentation, GPU isolation techniques.
"""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.placement import GpuDevice
from torchtune_sys.model.snapshot import Snapshot, gpus_told, pci_devices_told
from torchtune_sys.model.values import Missing, Why, known

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
    env = {} if isinstance(s.session, Missing) else known(s.session.env, {})
    nvidia = _of_nvml(s) or known(boards, ()) or _of_bus(s, "0x10de", "nvidia")
    if not nvidia:
        amd = _of_bus(s, "0x1002", "amdgpu")
        for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
            listed = next((env[name] for name in names if name in env), None)
            amd = amd if listed is None else _named(listed, amd)
        return Visible(addresses=tuple(board.address for board in amd))
    ordered = tuple(sorted(nvidia, key=lambda board: board.address))
    every = tuple(board.address for board in ordered)
    mixed = len({board.name for board in ordered}) > 1 and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return _listed([entry.strip() for entry in listed.split(",")], ordered, mixed)
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


def _named(listed: str, boards: tuple[GpuDevice, ...]) -> tuple[GpuDevice, ...]:
    """AMD's lists: numbers, within those that are left; an entry that is none ends the list."""
    found: list[GpuDevice] = []
    for entry in listed.split(","):
        number = _index(entry.strip(), len(boards))
        if number is None:
            break
        found.append(boards[number])
    return tuple(found)


def _index(entry: str, below: int) -> int | None:
    if entry.isascii() and entry.isdecimal() and len(entry) < 6 and int(entry) < below:
        return int(entry)
    return None


def _listed(entries: list[str], ordered: tuple[GpuDevice, ...], mixed: bool) -> Visible:
    """Return what CUDA_VISIBLE_DEVICES names. An entry that names nothing, or in another way than the first one, hides itself and all that
    follow; one that is named twice hides every GPU (as torch.cuda's _parse_visible_devices, which follows CUDA)."""
    found: dict[str, str] = {}
    note, way = "", _way(entries[0])
    for entry in entries:
        if _way(entry) != way:
            break
        if way == "MIG-":
            name, address = entry.lower(), _of_instance(entry, ordered)
            note = note if address else _INSTANCE
        elif way == "GPU-":
            fitting = [board for board in ordered if board.uuid.lower().startswith(entry.lower())]
            if len(fitting) != 1:
                if any(board.uuid for board in ordered):
                    break
                fitting, note = [GpuDevice(address="")], "the GPUs' UUIDs were not seen"
            name, address = entry.lower(), fitting[0].address
        else:
            number = _number(entry)
            if number is None or number >= len(ordered):
                break
            name = str(number)
            address, note = ("", _ORDER) if mixed else (ordered[number].address, note)
        if name in found:
            return Visible(addresses=(), candidates=())
        found[name] = address
    return Visible(addresses=tuple(found.values()), candidates=tuple(board.address for board in ordered), note=note)


def _way(entry: str) -> str:
    return next((way for way in ("MIG-", "GPU-") if entry.upper().startswith(way)), "")


def _number(entry: str) -> int | None:
    """As strtol reads it: what follows the digits does not matter."""
    unsigned = entry.removeprefix("+")
    digits = unsigned[: len(unsigned) - len(unsigned.lstrip("0123456789"))][:20]
    return int(digits) if digits else None


def _of_instance(entry: str, ordered: tuple[GpuDevice, ...]) -> str:
    """Drivers before R470 name an instance MIG-GPU-<uuid>/<gi>/<ci>; later ones give it a UUID of its own."""
    whole = entry[4:].partition("/")[0].lower()
    if len(ordered) == 1:
        return ordered[0].address
    return next((board.address for board in ordered if board.uuid and board.uuid.lower() == whole), "")
