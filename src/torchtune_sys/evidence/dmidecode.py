"""Memory modules as ``dmidecode`` prints them (dmidecode.c, DMI type 17); ``formats/smbios`` reads the same of the firmware's table."""

from __future__ import annotations

import re

from torchtune_sys.formats.smbios import FORMS
from torchtune_sys.model.facts.hardware import HardwareFacts, MemoryDevice
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern

_BLOCK = pattern(r"^(Physical Memory Array|Memory Device)\n((?:[ \t]+[^\n]*(?:\n|\Z))+)", re.MULTILINE)
_FIELD = pattern(r"^[ \t]+([A-Z][\w ]{2,40}): *(\S[^\n]{0,100}?)? *$", re.MULTILINE)
_MIB = {"MB": 1, "GB": 1024, "TB": 1 << 20, "kB": 0}
_FIRMWARE = ("ROM", "Flash", "EEPROM", "FEPROM", "EPROM")
_NAMES = {"Row Of Chips": "soldered", "Chip": "soldered", "Die": "soldered"}


def hardware_facts(text: str) -> HardwareFacts | None:
    """Return the slots, where as many are shown as the arrays of the system's memory have: a part of the output says nothing of the rest.

    >>> array = "Physical Memory Array\\n\\tUse: System Memory\\n\\tNumber Of Devices: 2\\n"
    >>> module = "Memory Device\\n\\tSize: 64 GB\\n\\tForm Factor: DIMM\\n\\tLocator: A1\\n\\tType: DDR5\\n\\tSpeed: 6400 MT/s\\n"
    >>> empty = "Memory Device\\n\\tSize: No Module Installed\\n\\tLocator: A2\\n"
    >>> [(one.locator, one.size_mib, one.rated_mts) for one in hardware_facts(f"{array}\\n{module}\\n{empty}").memory_devices]
    [('A1', 65536, 6400), ('A2', 0, None)]
    >>> hardware_facts(f"{array}\\n{module}") is None
    True
    """
    if "Memory Device\n" not in text:
        return None
    blocks = [(found[1], dict(_FIELD.findall(found[2]))) for found in _BLOCK.finditer(text)]
    arrays = [fields for name, fields in blocks if name == "Physical Memory Array" and fields.get("Use") == "System Memory"]
    slots = [fields for name, fields in blocks if name == "Memory Device"]
    slots = [fields for fields in slots if fields.get("Type") not in _FIRMWARE]
    expected = sum(natural(fields.get("Number Of Devices", "")) or 0 for fields in arrays)
    if not slots or len(slots) != expected:
        return None
    modules = (fields for fields in slots if fields.get("Memory Technology", "DRAM") in ("DRAM", "Unknown", "<OUT OF SPEC>"))
    return HardwareFacts(memory_devices=tuple(map(_device, modules)))


def _device(fields: dict[str, str]) -> MemoryDevice:
    size = re.fullmatch(r"(\d{1,9}) (kB|MB|GB|TB)", fields.get("Size", ""))
    form = fields.get("Form Factor", "")
    return MemoryDevice(
        locator=fields.get("Locator", "")[:64],
        bank=fields.get("Bank Locator", "")[:64],
        size_mib=int(size[1]) * _MIB[size[2]] if size else 0,
        rated_mts=_speed(fields.get("Speed", "")),
        configured_mts=_speed(fields.get("Configured Memory Speed", fields.get("Configured Clock Speed", ""))),
        form=_NAMES.get(form, form if form in FORMS.values() else ""),
    )


def _speed(words: str) -> int | None:
    found = re.fullmatch(r"(\d{1,7}) (?:MT/s|MHz)", words)
    return int(found[1]) if found else None
