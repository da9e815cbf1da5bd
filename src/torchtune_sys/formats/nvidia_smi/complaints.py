"""By which words nvidia-smi says that it cannot look, and what NVML calls that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torchtune_sys.formats.nvidia_smi.values import SIZE_LIMIT, SOURCE, missing


def failures(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (NVML's name, why, the line) for each line by which nvidia-smi says that it could not look, in order."""
    text = text[:SIZE_LIMIT]
    sought = [each for each in _COMPLAINTS if each[0] in text]
    for line in text.splitlines() if sought else ():
        for words, name, why in sought:
            if words in line and not any(value in line for value in _VALUES) and _ASIDE.match(line) is None:
                yield name, why, _sentence(line, words)
                break


_BEGINNINGS = ("Failed to initialize NVML", "NVIDIA-SMI", "Unable to determine")


def _sentence(line: str, words: str) -> str:
    """Return the complaint without the prose or the quotes around it.

    >>> _sentence('I got "Failed to initialize NVML: Unknown Error". Help!', "Unknown Error")
    'Failed to initialize NVML: Unknown Error'
    """
    at = line.index(words)
    starts = [start for beginning in _BEGINNINGS if (start := line.rfind(beginning, 0, at + len(words))) >= 0]
    start = max(starts, default=at)
    quote = line[start - 1 : start] if start else ""
    end = line.find(quote, start) if quote and quote in "\"'`*" else -1
    return line[start : end if end > start else None].strip()[:300]


_ASIDE = re.compile(
    r"(?i)\W{0,12}(?:(?:(?:el)?if|assert|return|case|raise|grep)\b[^\n]{0,80}?[\"']|(?:(?:please|could you|can you) ){0,2}(?:add|document|mention|describe|clarify)\b)"
)
"""A statement of a program, or what somebody asks for: the words are its subject."""
_VALUES = tuple(around.format(words) for words in ("GPU is lost", "GPU requires reset") for around in ("[{}]", " : {}", ">{}<"))
"""One GPU's value in a list of all."""
_COMPLAINTS = (
    ("Driver/library version mismatch", "LIB_RM_VERSION_MISMATCH", "failed"),
    ("couldn't communicate with the NVIDIA driver", "DRIVER_NOT_LOADED", "absent"),
    ("Failed to initialize NVML: Driver Not Loaded", "DRIVER_NOT_LOADED", "absent"),
    ("Failed to initialize NVML: Insufficient Permissions", "NO_PERMISSION", "denied"),
    ("Failed to initialize NVML: Unknown Error", "UNKNOWN", "failed"),
    ("Failed to initialize NVML: GPU access blocked by the operating system", "OPERATING_SYSTEM", "denied"),
    ("GPU access blocked by the operating system", "OPERATING_SYSTEM", "denied"),
    ("Failed to initialize NVML: ", "UNKNOWN", "failed"),
    ("couldn't find libnvidia-ml.so", "LIBRARY_NOT_FOUND", "no-tool"),
    ("GPU requires reset", "RESET_REQUIRED", "failed"),
    ("GPU is lost", "GPU_IS_LOST", "failed"),
    ("Unable to determine the device handle for", "GPU_IS_LOST", "failed"),
    ("No devices were found", "NO_DEVICES", "absent"),
)
"""Texts of nvidia-smi. The handle of a GPU that fell off the bus cannot be determined: "Unknown Error", "GPU is lost", "Not Found"."""


def parse_failure(text: str) -> dict[str, Any] | None:
    """Return the facts behind the first complaint of nvidia-smi; None if it does not complain.

    >>> parse_failure("Failed to initialize NVML: Driver/library version mismatch\\nNVML library version: 580.178")["error"]
    'LIB_RM_VERSION_MISMATCH'
    """
    for name, why, line in failures(text):
        found = missing(why, line, "run as root" if why == "denied" else "")
        library = text.partition("NVML library version:")[2].strip().split("\n")[0].strip()
        return {
            "driver_version": found,
            "cuda_driver_version": found,
            "library_version": library or found,
            "devices": found,
            "error": name,
            "source": SOURCE,
        }
    return None
