"""CPU sets as sysfs writes them: lists (``0-3,8``) and, on old kernels only, hexadecimal masks."""

from __future__ import annotations

from torchtune_sys.host.base import Host, interpreted
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact


def parse_mask(text: str) -> CpuSet:
    """Parse groups of 32 bits in hexadecimal, the highest CPUs first (``bitmap_parse``). Raises ValueError.

    >>> str(parse_mask("00000001,0000ffff\\n"))
    '0-15,32'
    """
    groups = text.strip().split(",")
    if len(groups) > 1 << 12:
        raise ValueError("more groups than any kernel has CPUs")
    numbers: list[int] = []
    for place, group in enumerate(reversed(groups)):
        bits = int(group, 16)
        if not 0 <= bits < 1 << 32:
            raise ValueError(f"not a mask of 32 bits: {group[:20]!r}")
        numbers.extend(place * 32 + bit for bit in range(32) if bits >> bit & 1)
    return CpuSet(numbers)


def read_set(host: Host, path: str, *, mask: bool = False) -> Fact[CpuSet]:
    """Return the set in a file. An empty list is an empty set."""
    return interpreted(host.text(path), parse_mask if mask else parse_list, path)


def parse_list(text: str) -> CpuSet:
    """Parse ``0-3,8`` as the kernel ends a file with it. Raises ValueError."""
    return CpuSet.parse(text.strip("\0 \n"))
