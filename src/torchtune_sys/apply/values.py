"""Running values: files below /proc and /sys that are written in place."""

from __future__ import annotations

import glob
import os

from torchtune_sys.model.target import choice


def read(path: str) -> str:
    """What is set now, blanks normalised; of a file that offers a choice, what is chosen. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return " ".join(choice(file.read())[0].split())


def write(path: str, value: str) -> None:
    """One write(2), as these files want it. Raises OSError: EINVAL where the kernel refuses the value."""
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode() + b"\n")
    finally:
        os.close(handle)


def matching(path: str, is_pattern: bool) -> list[str]:
    """The files that are meant; of a pattern, those that there are now."""
    return sorted(glob.glob(path)) if is_pattern else [path]
