"""Rules on environment variables whose values CUDA or PyTorch interpret differently than intended."""

from __future__ import annotations

from collections.abc import Mapping

from torchtune_sys.model.numbers import natural
from torchtune_sys.model.version import version

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

_BOOLEAN = (
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)
_OTHER = (
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "roundup_bypass_threshold_mb",
    "backend",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "per_process_memory_fraction",
    "large_segment_size_mb",
)
_SINCE = {"expandable_segments": (2, 1), "backend": (2, 0)}
"""First torch release that takes the option; an older one raises."""


def visible_devices_fault(value: str, count: int, uuids: tuple[str, ...] | None, sliced: bool = False) -> str:
    """Return what is wrong with CUDA_VISIBLE_DEVICES on a host with ``count`` GPUs, ``""`` if nothing. ``uuids`` is None where they are
    not known; ``sliced``: MIG is on, where CUDA counts instances.

    >>> visible_devices_fault("0,1,5,2", 4, None)
    'there is no GPU 5: it and what follows is hidden'
    >>> visible_devices_fault("", 4, None), visible_devices_fault("3,0", 4, None)
    ('it is empty, which hides every GPU', '')
    """
    entries = [entry.strip() for entry in value.split(",")]
    if entries in ([""], ["-1"], ["NoDevFiles"]):
        return "it is empty, which hides every GPU" if not entries[0] else f"{entries[0]} is no device, which hides every GPU"
    if entries[0].upper().startswith("MIG-"):
        return _repeated(entries)
    if entries[0].upper().startswith("GPU-"):
        return _uuid_fault(entries, uuids)
    return _index_fault(entries, count, sliced)


def visible_devices(value: str, count: int) -> int:
    """Return how many of ``count`` GPUs CUDA shows with this CUDA_VISIBLE_DEVICES: it stops at the first entry that is wrong.

    >>> visible_devices("0,1,5,2", 4), visible_devices("0,0", 4), visible_devices("", 4), visible_devices("3,0", 4)
    (2, 0, 0, 2)
    """
    entries = value.split(",")
    if _repeated([entry.strip() for entry in entries]):
        return 0
    fitting = (
        number for number in range(len(entries), 0, -1) if not visible_devices_fault(",".join(entries[:number]), count, None)
    )
    return next(fitting, 0)


AMD_LISTS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that hide AMD's GPUs: the runtime reads the first, HIP the second, and the last where the second is not set."""


def amd_fault(env: Mapping[str, str], count: int) -> tuple[str, str]:
    """Return the variable that hides AMD GPUs by an entry that is none of them, and its fault; empty strings if none does.

    An empty list is not the same to all: the runtime hides all by it (ROCR-Runtime core/util/flag.h, IsEnvVarSet), HIP takes it for none
    (ROCm/clr rocclr/device/rocm/rocdevice.cpp), and torch counts no device (torch/cuda/__init__.py, _parse_visible_devices).

    >>> amd_fault({"HIP_VISIBLE_DEVICES": "-1"}, 8), amd_fault({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": ""}, 8)
    (('HIP_VISIBLE_DEVICES', '-1 is no device, which hides every GPU'), ('', ''))
    >>> amd_fault({"ROCR_VISIBLE_DEVICES": ""}, 8)[0], amd_fault({"HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0"}, 8)[0]
    ('ROCR_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES')
    """
    for name in AMD_LISTS:
        value = env.get(name)
        if value is None or (name == "CUDA_VISIBLE_DEVICES" and "HIP_VISIBLE_DEVICES" in env):
            continue
        if not value:
            return name, _EMPTY[name == "ROCR_VISIBLE_DEVICES"]
        fault = visible_devices_fault(value, count, None)
        if fault and "twice" not in fault:
            return name, fault
    return "", ""


_EMPTY = (
    "an empty list: torch.cuda.device_count() is 0, as if every GPU were hidden, although HIP ignores it",
    "an empty list, which hides every GPU",
)


def _index_fault(entries: list[str], count: int, sliced: bool) -> str:
    taken: list[str] = []
    for entry in entries:
        unsigned = entry.removeprefix("+")
        digits = unsigned[: len(unsigned) - len(unsigned.lstrip("0123456789"))][:20]  # as strtol reads it
        if not digits:
            rest = "every GPU" if not taken else "it and what follows"
            return f"{entry or 'an empty entry'} is no number: {rest} is hidden"
        if int(digits) >= count and not sliced:
            return f"there is no GPU {int(digits)}: {'every GPU' if not taken else 'it and what follows'} is hidden"
        taken.append(str(int(digits)))
    return _repeated(taken)


def _uuid_fault(entries: list[str], uuids: tuple[str, ...] | None) -> str:
    for place, entry in enumerate(entries):
        if not entry.upper().startswith("GPU-"):
            return f"{entry or 'an empty entry'} is no UUID: {'every GPU' if not place else 'it and what follows'} is hidden"
        if uuids is not None:
            fitting = [uuid for uuid in uuids if uuid.lower().startswith(entry.lower())]
            if len(fitting) != 1:
                words = "no GPU has the UUID" if not fitting else f"{len(fitting)} GPUs have a UUID that begins with"
                return f"{words} {entry}: {'every GPU' if not place else 'it and what follows'} is hidden"
    return _repeated(entries)


def _repeated(entries: list[str]) -> str:
    twice = next((entry for entry in entries if entries.count(entry) > 1), None)
    return f"{twice} is named twice, which hides every GPU" if twice is not None else ""


def _pairs(value: str) -> list[tuple[str, str | None]]:
    """``name:value`` pairs; a bracketed list is one value. None: there is no colon."""
    pairs: list[tuple[str, str | None]] = []
    depth = 0
    part = ""
    for character in value + ",":
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            name, colon, rest = part.partition(":")
            pairs.append((name.strip(), rest.strip() if colon else None))
            part = ""
        else:
            part += character
    return pairs


def allocator_faults(value: str, torch: str | None) -> list[str]:
    """Return why the allocator would raise; an option that is not known here is left to :func:`unknown_allocator_names`.

    >>> allocator_faults("expandable_segments:True,max_split_size_mb:512", "2.11.0")
    []
    >>> allocator_faults("max_split_size_mb=512", None)
    ["'max_split_size_mb=512' is no name:value"]
    >>> allocator_faults("expandable_segment:True", None)
    ['there is no option expandable_segment (expandable_segments?)']
    """
    if not value.strip():
        return []
    found = []
    for name, setting in _pairs(value):
        if setting is None:
            if name or value.strip() != "":
                found.append(f"{name!r} is no name:value" if name else "an empty entry")
        elif name in _BOOLEAN + _OTHER:
            found += _setting_faults(name, setting, torch)
        elif near := _near(name):
            found.append(f"there is no option {name} ({near}?)")
    return found


def unknown_allocator_names(value: str) -> list[str]:
    """Return the options that are in no list here and resemble none: newer than this table, or wrong."""
    return [name for name, setting in _pairs(value) if setting is not None and name not in _BOOLEAN + _OTHER and not _near(name)]


def _near(name: str) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(name.lower(), _BOOLEAN + _OTHER, n=1, cutoff=0.82)), "")


def _setting_faults(name: str, setting: str, torch: str | None) -> list[str]:
    since = _SINCE.get(name)
    if since and torch and version(torch)[:2] < since:
        return [f"{name} came with torch {since[0]}.{since[1]}; this is {torch}"]
    if name in _BOOLEAN:
        return [] if setting in ("True", "False") else [f"{name} takes True or False"]
    if name == "max_split_size_mb":
        # kLargeBuffer is 20 MiB: anything up to that raises.
        return [] if (natural(setting) or 0) > 20 else ["max_split_size_mb must be a whole number above 20"]
    if name in ("garbage_collection_threshold", "per_process_memory_fraction"):
        return [] if _between(setting, 0.0, 1.0, name != "garbage_collection_threshold") else [f"{name} must lie between 0 and 1"]
    if name == "backend":
        return [] if setting in ("native", "cudaMallocAsync", "hipMallocAsync") else ["backend is native or cudaMallocAsync"]
    return []


def _between(text: str, low: float, high: float, closed: bool) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return low < number < high or (closed and number in (low, high))
