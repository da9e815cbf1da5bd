"""Memory devices in the firmware's SMBIOS table (DMTF DSP0134, structure type 17)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

_MOST = 4096
_FIRMWARE = (0x08, 0x09, 0x0A, 0x0B, 0x0C)
"""Memory types (7.18.2): ROM, flash, EEPROM, FEPROM, EPROM."""
_PERSISTENT = (0x04, 0x05, 0x06, 0x07)
"""Memory technologies (7.18.6): NVDIMM-N, -F and -P, Intel Optane persistent memory; they stand beside the modules that are judged."""
FORMS = {0x05: "soldered", 0x09: "DIMM", 0x0B: "soldered", 0x0D: "SODIMM", 0x0F: "FB-DIMM", 0x10: "soldered", 0x11: "CAMM"}
"""Form factors (7.18.1); chip, row of chips and die are soldered."""


def structures(data: bytes) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Yield type, formatted area and strings of each structure; ends at type 127, or where the table is damaged."""
    at = 0
    for _ in range(_MOST):
        if at + 4 > len(data):
            return
        kind, length = data[at], data[at + 1]
        end = data.find(b"\0\0", at + length)
        if length < 4 or kind == 127 or end < 0:
            return
        yield kind, data[at : at + length], data[at + length : end].split(b"\0")
        at = end + 2


def memory_devices(data: bytes) -> list[dict[str, Any]]:
    """Return each slot: ``locator``, ``bank``, ``size_mib`` (0: empty), ``rated_mts`` and ``configured_mts`` (null: not told), ``form``.

    Sizes and speeds that do not fit their old 16-bit fields are in the extended ones (7.18.5, 7.18.4). Boards list the chips of their
    firmware, too, and persistent memory: these are left out.
    """
    return [
        _device(area, strings)
        for kind, area, strings in structures(data)
        if kind == 17 and len(area) >= 0x15 and area[0x12] not in _FIRMWARE and _number(area, 0x28, "<B") not in _PERSISTENT
    ]


def _device(area: bytes, strings: list[bytes]) -> dict[str, Any]:
    raw = _number(area, 0x0C, "<H")
    size = 0 if raw in (0, 0xFFFF, None) else _number(area, 0x1C, "<I") or 0 if raw == 0x7FFF else raw & 0x7FFF
    if raw is not None and raw & 0x8000 and raw != 0xFFFF:
        size //= 1024
    return {
        "locator": _string(area, strings, 0x10),
        "bank": _string(area, strings, 0x11),
        "size_mib": size,
        "rated_mts": _speed(area, 0x15, 0x54),
        "configured_mts": _speed(area, 0x20, 0x58),
        "form": FORMS.get(area[0x0E], ""),
    }


def _number(area: bytes, at: int, form: str) -> int | None:
    width = struct.calcsize(form)
    return int(struct.unpack_from(form, area, at)[0]) if len(area) >= at + width else None


def _speed(area: bytes, at: int, extended: int) -> int | None:
    speed = _number(area, at, "<H")
    speed = _number(area, extended, "<I") if speed == 0xFFFF else speed
    return speed or None


def _string(area: bytes, strings: list[bytes], at: int) -> str:
    number = area[at] if len(area) > at else 0
    text = strings[number - 1] if 0 < number <= len(strings) else b""
    return text.decode("ascii", "replace").strip()[:64]
