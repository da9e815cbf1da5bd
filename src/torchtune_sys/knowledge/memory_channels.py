"""The number of memory channels of each processor, and the channels behind the firmware's slot names and the kernel's controllers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from torchtune_sys.knowledge import tables
from torchtune_sys.model.patterns import pattern

Slot = tuple[str, str]
"""Device locator and bank locator of SMBIOS."""


def channels(model: str) -> int:
    """Return the channels of one processor by its name in /proc/cpuinfo; 0 where they are not known.

    >>> channels("Intel(R) Xeon(R) Platinum 8462Y+"), channels("AMD EPYC 9654 96-Core Processor"), channels("Neoverse-V2")
    (8, 12, 0)
    """
    words = " ".join(model.split())
    return next(
        (int(row["channels"]) for row in tables.rows("memory_channels") if re.search(row["pattern"], words, re.IGNORECASE)), 0
    )


def by_names(slots: list[Slot], sockets: int, per_socket: int) -> list[str] | None:
    """Return the channel of each slot, by whichever way of naming yields exactly the channels that there are; None where none does.

    >>> by_names([("DIMM_A1", ""), ("DIMM_A2", ""), ("DIMM_B1", ""), ("DIMM_B2", "")], 1, 2)
    ['A', 'A', 'B', 'B']
    >>> by_names([("DIMM 1", ""), ("DIMM 2", ""), ("DIMM 3", ""), ("DIMM 4", "")], 1, 2)
    """
    ways: tuple[Callable[[Slot], str], ...] = (
        lambda slot: _named(slot[1]),
        lambda slot: _named(slot[0]),
        lambda slot: _lettered(slot[0]),
        lambda slot: _digits(slot[0]),
        lambda slot: _dell(slot[0], per_socket),
    )
    for way in ways:
        found = [way(slot) for slot in slots]
        if all(found) and len(set(found)) == sockets * per_socket:
            return found
    return None


_OWNER = pattern(r"(?:CPU|PROC|SOCKET|NODE|CONTROLLER|\bP|_P)[ _#]?(\d{1,2})(?![A-Z0-9])")


def _owner(text: str) -> str:
    """Processor, and node or controller within it, before the channel's name."""
    return ".".join(_OWNER.findall(text))


def _named(text: str) -> str:
    """``P0_Node1_Channel0_Dimm0``, ``P0 CHANNEL A``, ``Controller1-ChannelA-DIMM0``, ``NODE 0 CHANNEL 1``, ``CPU0_C3D1``."""
    upper = text.upper()
    channel = re.search(r"CH(?:AN(?:NEL)?)?[ _#]?([A-Z]|\d{1,2})(?![A-Z0-9])", upper) or re.search(r"_C(\d{1,2})D\d$", upper)
    return f"{_owner(upper[: channel.start()])}.{channel[1]}".lstrip(".") if channel else ""


def _lettered(text: str) -> str:
    """``P1-DIMMC1``, ``DIMM_A1``, ``CPU1_DIMM_B2``, ``DIMM_P0_A0``, ``DIMMA``, ``A1``."""
    upper = text.upper().replace(" ", "_").replace("-", "_")
    channel = re.search(r"(?:DIMM_?|P\d_|CPU\d_|^)([A-Z])_?\d?$", upper)
    return f"{_owner(upper[: channel.start(1)])}.{channel[1]}".lstrip(".") if channel else ""


def _digits(text: str) -> str:
    """``DIMM010``: processor 0, channel 1, slot 0 (Huawei)."""
    found = re.fullmatch(r"DIMM(\d\d)\d", text.upper())
    return found[1] if found else ""


def _dell(text: str, per_socket: int) -> str:
    """``A1`` … ``B16``: the letter is the processor, slots 1 and 1 + channels lie on channel 0 (tables of Dell's owner's manuals)."""
    found = re.fullmatch(r"(?:DIMM[. _]?)?([A-H])(\d{1,2})", text.upper())
    return f"{found[1]}.{(int(found[2]) - 1) % per_socket}" if found else ""


def by_controllers(controllers: Iterable[tuple[str, ...]]) -> int:
    """Return the channels with memory, by the places that EDAC's controllers name; 0 where one names no channel.

    >>> by_controllers([("channel 0 slot 0", "channel 1 slot 0", "channel 1 slot 1"), ("csrow 0 channel 5", "csrow 1 channel 5"), ()])
    3
    >>> by_controllers([("memory 0", "memory 1")])
    0
    """
    total = 0
    for places in controllers:
        numbers = {place.partition("channel ")[2].partition(" ")[0] for place in places}
        if "" in numbers:
            return 0
        total += len(numbers)
    return total
