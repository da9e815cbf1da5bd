"""Which GPUs the lists in the environment leave to a session: CUDA_VISIBLE_DEVICES, and AMD's.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables" (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER); torch/cuda/__init__.py,
_parse_visible_devices; https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.snapshot import Snapshot, gpus_told, variables_told
from torchtune_sys.model.values import known

_LAST = chr(0x10FFFF)


class Listed(msgspec.Struct, frozen=True):
    """What CUDA makes of CUDA_VISIBLE_DEVICES."""

    places: tuple[int | None, ...] = ()
    """Of the GPUs that it shows, in its order: the place in CUDA's own numbers; None where the entry is right, as far as can be seen, and
    does not tell which GPU it is (a MIG instance, a UUID where those were not seen)."""
    names: tuple[str, ...] = ()
    """The entries for them, in one form each."""
    fault: str = ""
    """Why it hides GPUs that it lists, or all."""
    repeats: bool = False
    """Whether it hides all because one is named twice."""


def way(value: str) -> str:
    """Return how a list names GPUs, which its first entry decides: ``GPU-``, ``MIG-``, or ``""`` for numbers."""
    return next((prefix for prefix in ("MIG-", "GPU-") if value.lstrip().upper().startswith(prefix)), "")


def listed(value: str, uuids: Sequence[str], sliced: bool = False) -> Listed:
    """Return what CUDA shows. ``uuids``: of each GPU in CUDA's order, ``""`` where it was not told; ``sliced``: MIG is on, where CUDA counts
    instances.

    An entry that names nothing, or names it in another way than the first one, hides itself and all that follow. One that is there
    twice hides every GPU. A comma at the end hides nothing.

    >>> listed("0,1,5,2", ("",) * 4)
    Listed(places=(0, 1), names=('0', '1'), fault='there is no GPU 5: it and what follows is hidden', repeats=False)
    >>> listed("GPU-b,gpu-a", ("GPU-a1", "GPU-b1")).places, listed("", ("",)).fault, listed("3,0", ("",) * 4).places
    ((1, 0), 'it is empty, which hides every GPU', (3, 0))
    """
    entries = [entry.strip() for entry in value.rstrip(", \t").split(",")] if value.strip(", \t") else [value.strip()]
    if entries in ([""], ["-1"], ["NoDevFiles"]):
        return Listed(
            fault="it is empty, which hides every GPU" if not entries[0] else f"{entries[0]} is no device, which hides every GPU"
        )
    found: dict[str, int | None] = {}
    fault = ""
    for entry, (name, place, fault) in zip(entries, _each(entries, way(value), uuids, sliced), strict=False):
        if fault:
            fault += f": {'it and what follows' if found else 'every GPU'} is hidden"
            break
        if name in found:
            return Listed(fault=f"{name if name.isdecimal() else entry} is named twice, which hides every GPU", repeats=True)
        found[name] = place
    return Listed(tuple(found.values()), tuple(found), fault)


def _each(entries: list[str], prefix: str, uuids: Sequence[str], sliced: bool) -> Iterable[tuple[str, int | None, str]]:
    """Name, place and fault of each entry."""
    words = {"MIG-": "MIG instance", "GPU-": "UUID", "": "number"}[prefix]
    ordered = sorted((uuid.lower(), place) for place, uuid in enumerate(uuids) if uuid)
    for entry in entries:
        name = entry.lower()
        fitting = _instance(name, ordered, len(uuids)) if prefix == "MIG-" else _fitting(name, ordered) if prefix else []
        number = None if prefix else _number(entry)
        if number is None if not prefix else way(entry) != prefix:
            yield name, None, f"{entry or 'an empty entry'} is no {words}"
        elif number is not None:
            here = number < len(uuids)
            yield (
                str(number),
                number if here else None,
                "" if here or (sliced and len(uuids) > 1) else f"there is no GPU {number}",
            )
        elif prefix == "GPU-" and len(fitting) > 1:
            yield name, None, f"{len(fitting)} GPUs have a UUID that begins with {entry}"
        elif prefix == "GPU-" and not fitting and len(ordered) == len(uuids):
            yield name, None, f"no GPU has the UUID {entry}"
        else:
            yield name, fitting[0] if fitting else None, ""


def _fitting(start: str, ordered: list[tuple[str, int]]) -> list[int]:
    """Return the places of the UUIDs that begin so."""
    first = bisect_left(ordered, (start,))
    return [place for _, place in ordered[first : bisect_left(ordered, (start + _LAST,), first)]]


def _instance(name: str, ordered: list[tuple[str, int]], count: int) -> list[int]:
    """Drivers before R470 name an instance MIG-GPU-<uuid>/<gi>/<ci>; later ones give it a UUID of its own."""
    return [0] if count == 1 else [place for uuid, place in ordered if uuid == name[4:].partition("/")[0]][:1]


def _number(entry: str) -> int | None:
    """As strtol reads it: what follows the digits does not matter."""
    unsigned = entry.removeprefix("+")
    digits = unsigned[: len(unsigned) - len(unsigned.lstrip("0123456789"))][:20]
    return int(digits) if digits else None


def left_out(s: Snapshot) -> frozenset[int]:
    """Return the indices of the GPUs that CUDA_VISIBLE_DEVICES hides, or may: numbers of GPUs of several models are CUDA's own, from the fastest,
    unless CUDA_DEVICE_ORDER says otherwise."""
    env = variables_told(s)
    value = env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return frozenset()
    gpus = sorted(gpus_told(s), key=lambda one: (known(one.pci_address, ""), one.index))
    shown = listed(value, uuids_of(gpus), any(one.mig is True for one in gpus)).places
    every = frozenset(gpu.index for gpu in gpus)
    if not way(value) and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({known(one.name, "") for one in gpus}) > 1:
        return every if len(shown) < len(gpus) else frozenset()
    return frozenset() if None in shown else every - {gpus[place].index for place in shown if place is not None}


def uuids_of(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the UUIDs, ``""`` for one that was not told."""
    return tuple(known(gpu.uuid, "") for gpu in gpus)


AMD_LISTS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that hide AMD's GPUs: the runtime reads the first, HIP the second, and the last where the second is not set."""


class AmdFault(msgspec.Struct, frozen=True):
    variable: str = ""
    fault: str = ""
    count: int = 0
    """How many GPUs there are to choose from: what ROCR_VISIBLE_DEVICES leaves is all that HIP sees, and counts from 0."""


def amd_fault(env: Mapping[str, str], count: int) -> AmdFault:
    """Return the variable that hides AMD GPUs by an entry that is none of them; without a variable if none does.

    An empty list is not the same to all: the runtime hides all by it (ROCR-Runtime core/util/flag.h, IsEnvVarSet), HIP takes it for none
    (ROCm/clr rocclr/device/rocm/rocdevice.cpp), and torch counts no device (torch/cuda/__init__.py, _parse_visible_devices).

    >>> amd_fault({"HIP_VISIBLE_DEVICES": "-1"}, 8).fault, amd_fault({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": ""}, 8).fault
    ('-1 is no device, which hides every GPU', '')
    >>> amd_fault({"ROCR_VISIBLE_DEVICES": ""}, 8).variable, amd_fault({"HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0"}, 8).variable
    ('ROCR_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES')
    >>> amd_fault({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5"}, 8)
    AmdFault(variable='HIP_VISIBLE_DEVICES', fault='there is no GPU 4 (ROCR_VISIBLE_DEVICES leaves 2, counted from 0): every GPU is hidden', count=2)
    """
    left = ""
    for name in AMD_LISTS:
        value = env.get(name)
        if value is None or (name == "CUDA_VISIBLE_DEVICES" and "HIP_VISIBLE_DEVICES" in env):
            continue
        if not value:
            return AmdFault(name, _EMPTY[name == "ROCR_VISIBLE_DEVICES"], count)
        shown = listed(value, ("",) * count)
        if shown.fault and not shown.repeats:
            words, colon, rest = shown.fault.partition(":")
            return AmdFault(name, f"{words}{left if words.startswith('there is no GPU') else ''}{colon}{rest}", count)
        if name == "ROCR_VISIBLE_DEVICES" and shown.places:
            count, left = len(shown.places), f" (ROCR_VISIBLE_DEVICES leaves {len(shown.places)}, counted from 0)"
    return AmdFault()


_EMPTY = (
    "an empty list: torch.cuda.device_count() is 0, as if every GPU were hidden, although HIP ignores it",
    "an empty list, which hides every GPU",
)


def intel_faults(env: Mapping[str, str], gpus: int) -> list[tuple[str, str]]:
    """Return the variables that hide every GPU of Intel's from torch, and how; ``gpus``: how many devices there are.

    >>> intel_faults({"ZE_AFFINITY_MASK": "2"}, 1), intel_faults({"ZE_AFFINITY_MASK": "1,3"}, 2), intel_faults({"ZE_AFFINITY_MASK": "0.1"}, 1)
    ([('ZE_AFFINITY_MASK', 'names no GPU that is here')], [], [])
    >>> intel_faults({"ONEAPI_DEVICE_SELECTOR": "opencl:cpu"}, 1), intel_faults({"ONEAPI_DEVICE_SELECTOR": "opencl:*;level_zero:gpu"}, 1)
    ([('ONEAPI_DEVICE_SELECTOR', 'leaves no device of Level Zero')], [])
    >>> intel_faults({"ONEAPI_DEVICE_SELECTOR": "*:gpu"}, 1), intel_faults({"ONEAPI_DEVICE_SELECTOR": "!opencl:*"}, 1), intel_faults({"ZE_AFFINITY_MASK": ""}, 1)
    ([], [], [])
    """
    found = []
    named = [natural(part.partition(".")[0].strip()) for part in env.get("ZE_AFFINITY_MASK", "").split(",")]
    if all(number is not None and number >= gpus for number in named):
        found.append(("ZE_AFFINITY_MASK", "names no GPU that is here"))
    terms = [term.strip().lower() for term in env.get("ONEAPI_DEVICE_SELECTOR", "").split(";") if term.strip()]
    chosen = [term.partition(":")[::2] for term in terms if not term.startswith("!")]
    if chosen and not any(backend in ("*", "level_zero") and devices != "cpu" for backend, devices in chosen):
        found.append(("ONEAPI_DEVICE_SELECTOR", "leaves no device of Level Zero"))
    return found
