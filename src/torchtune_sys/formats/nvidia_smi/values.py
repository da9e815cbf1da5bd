"""The words in which nvidia-smi gives values, in all of its forms: numbers with units, switches, and what it says where it has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtune_sys.model.numbers import natural

SIZE_LIMIT = 16 << 20
"""Characters; a node with 16 GPUs prints about 1 MB."""
SOURCE = "nvidia-smi"


def convert(read: Callable[[str], Any], text: str) -> Any:
    """Return ``read(text)``, or the missing fact that nvidia-smi's words stand for (``[N/A]``, ``ERR!``, ``[Insufficient Permissions]``).

    >>> convert(int, "7"), convert(int, "[N/A]")["$missing"], convert(int, "ERR!")["$missing"], convert(int, "x")["$missing"]
    (7, 'not-supported', 'failed', 'unparsed')
    """
    words = text.strip().strip("[]").strip()
    low = words.lower()
    if low in ("n/a", "not supported", "not available", "") or "deprecated" in low or "not found" in low:
        return missing("not-supported", words or "empty")
    if "permission" in low:
        return missing("denied", words, "run as root")
    if "err!" in low or "unknown error" in low or lost(low):
        return missing("failed", words)
    try:
        return read(words)
    except (ValueError, KeyError, OverflowError) as error:
        return missing("unparsed", f"{words[:60]!r}: {error}")


def lost(text: str) -> bool:
    """Return whether a value says that the GPU does not answer: ``[GPU is lost]``, ``[GPU requires reset]``."""
    low = text.lower()
    return "gpu is lost" in low or reset_required(low)


def reset_required(text: str) -> bool:
    """Return whether it does not answer because it has to be reset first (NVML_ERROR_RESET_REQUIRED)."""
    return "gpu requires reset" in text.lower()


def missing(why: str, detail: str, remedy: str = "") -> dict[str, str]:
    """Return a missing fact in JSON."""
    found = {"$missing": why, "source": SOURCE, "detail": detail}
    return {**found, "remedy": remedy} if remedy else found


def is_reported(found: Any) -> bool:
    """Return whether the output says anything of a fact, even that it has none."""
    return not (isinstance(found, dict) and found.get("$missing") == "not-recorded")


NOT_REPORTED = missing("not-recorded", "not in the output")


def bus_id(text: str) -> str:
    """Return the PCI address, ``0000:0c:00.0`` for ``00000000:0C:00.0``; also ``0000:0C:00.0`` and ``0C:00.0`` of old versions."""
    domain, _, rest = text.strip().lower().rpartition(":")[0].rpartition(":")
    device = text.strip().lower().rpartition(":")[2]
    if len(rest) != 2 or len(device) != 4 or device[2] != ".":
        raise ValueError("not a PCI address")
    return f"{int(domain or '0', 16):04x}:{int(rest, 16):02x}:{device}"


def count(text: str) -> int:
    """Return a number of things, perhaps with their name: ``3072 bank(s)``."""
    number = int(text.split()[0])
    if number < 0:
        raise ValueError("a count below zero")
    return number


def mebibytes(text: str) -> int:
    number, _, unit = text.partition(" ")
    if unit not in ("MiB", "MB", ""):
        raise ValueError("not MiB")
    return int(number) << 20


def milliwatts(text: str) -> int:
    return round(float(text.removesuffix("W").strip()) * 1000)


def leading_number(text: str) -> int:
    """Return the number at the start: ``28 C``, ``16x``, ``0 %``."""
    return int(text.split()[0].rstrip("xC%"))


def on(text: str) -> bool:
    """Read a switch or an answer; a table puts ``*`` behind what waits for a reset."""
    words = text.lower().rstrip("*")
    return {"enabled": True, "disabled": False, "on": True, "off": False, "yes": True, "no": False, "1": True, "0": False}[words]


def compute_mode(text: str) -> str:
    """Return NVML's name of the mode; ``E. Process`` is how tables cut it."""
    words = text.lower().replace("_", "-").replace(" ", "-")
    known = {"e.-process": "exclusive-process", "e.-thread": "exclusive-thread", "prohibited": "prohibited"}
    short = known.get(words, words)
    if short not in ("default", "exclusive-process", "exclusive-thread", "prohibited"):
        raise ValueError("not a compute mode")
    return short


def capability(text: str) -> list[int]:
    """Return major and minor of ``9.0``."""
    major, _, minor = text.partition(".")
    return [int(major), int(minor)]


def architecture(text: str) -> str:
    """Return NVML's name; nvidia-smi says ``Ada Lovelace``."""
    return text.split()[0]


def virtualization(text: str) -> str:
    """Return the mode as NVML names them in nvmlGpuVirtualizationMode_t."""
    words = text.lower().replace(" ", "-")
    return {"none": "none", "pass-through": "passthrough", "vgpu": "vgpu", "host-vgpu": "host-vgpu", "host-vsga": "host-vsga"}[
        words
    ]


def licensed(text: str) -> bool:
    """Return whether a vGPU has its licence; what follows tells until when, or what is still allowed.

    >>> licensed("Licensed (Expiry: 2026-12-1 8:0:0 GMT)"), licensed("Unlicensed (Unrestricted)")
    (True, False)
    """
    word = text.split()[0].lower()
    if word not in ("licensed", "unlicensed"):
        raise ValueError("neither licensed nor unlicensed")
    return word == "licensed"


def recovery(text: str) -> str:
    """Return what the driver asks for. Drivers before R570 answer yes or no to whether a reset is required.

    >>> recovery("Reset"), recovery("Drain and Reset"), recovery("None")
    ('gpu-reset', 'drain-and-reset', 'none')
    """
    words = text.lower().replace(" ", "-")
    short = {"reset": "gpu-reset", "no": "none", "yes": "gpu-reset"}.get(words, words)
    if short not in ("none", "gpu-reset", "reboot", "drain-p2p", "drain-and-reset", "imex-domain", "bus-reset"):
        raise ValueError("not a recovery action")
    return short


def dashed(text: str) -> str:
    """Return ``in-progress`` for ``In Progress``."""
    return text.lower().replace(" ", "-")


def cluster(text: str) -> bool:
    """Return whether a fabric has the id of a cluster: it spans hosts then.

    >>> cluster("00000000-0000-0000-0000-000000000000"), cluster("50000000-0000-0000-0000-000000000004")
    (False, True)
    """
    digits = text.replace("-", "")
    if len(digits) != 32:
        raise ValueError("not the id of a cluster")
    return int(digits, 16) != 0


def fabric_state(text: str) -> str:
    words = dashed(text)
    if words not in ("not-supported", "not-started", "in-progress", "completed"):
        raise ValueError("not a state of the fabric")
    return words


def cuda(text: str | None) -> Any:
    """Return the highest CUDA of the driver."""
    words = (text or "").strip()
    if natural(words.replace(".", "")) is not None:
        return words
    return missing("not-supported", words) if words else NOT_REPORTED
