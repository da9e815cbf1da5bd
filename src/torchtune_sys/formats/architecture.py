"""A host's architecture, by what names or implies it."""

from __future__ import annotations


def architecture_of(kernel: str, cpuinfo: str) -> str:
    """Return the architecture where uname was not recorded: by the release's suffix, else by the processor; ``""`` if neither tells.

    >>> architecture_of("5.14.0-70.el9.x86_64", ""), architecture_of("6.8.0", "flags\\t: fpu lm\\n"), architecture_of("", "CPU architecture: 8\\n")
    ('x86_64', 'x86_64', 'aarch64')
    """
    suffixes = {"amd64": "x86_64", "arm64": "aarch64"}
    for name in ("x86_64", "aarch64", "ppc64le", "s390x", "amd64", "arm64"):
        if kernel.endswith((f".{name}", f"-{name}")):
            return suffixes.get(name, name)
    for line in (*cpuinfo[:8192].splitlines(), *cpuinfo[-1024:].splitlines()):
        label, _, value = line.partition(":")
        match label.strip():
            case "flags":
                return "x86_64" if {"lm", "avx"} & set(value.split()) else "i686"  # AVX came after long mode
            case "CPU architecture" if value.strip() == "8":
                return "aarch64"
            case "vendor_id" if value.strip() == "IBM/S390":
                return "s390x"
            case "cpu" if value.strip().startswith("POWER"):
                return "ppc64" if "POWER7" in value else "ppc64le"
            case _:
                pass
    return ""
