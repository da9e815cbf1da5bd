"""Memory and swap as ``free`` prints them, where the unit is told: by a letter behind each number, or by the command."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.evidence.block_devices import size_of
from torchtune_sys.evidence.partial import partly
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern

_TABLE = pattern(
    r"^(?P<title> +total +used +free +shared[^\n]{0,60})\n(?:Mem|Memory): {1,20}(?P<memory>[^\n]{1,120})\n(?:[-+/a-z: ]{1,24}[^\n]{0,60}\n)?Swap: {1,20}(?P<swap>[^\n]{1,80})",
    re.MULTILINE,
)
_COMMAND = pattern(r"(?:^|[$#%>] ?)free(?P<options>(?: -{1,2}[a-z]{1,9})*)[ \t]*\n +total ", re.MULTILINE)
_UNITS = {
    "b": 1,
    "bytes": 1,
    "k": 1 << 10,
    "kibi": 1 << 10,
    "m": 1 << 20,
    "mebi": 1 << 20,
    "g": 1 << 30,
    "gibi": 1 << 30,
}
_NO_UNITS = frozenset(("h", "human", "l", "lohi", "t", "total", "v", "committed", "w", "wide"))
"""Options that change no unit (free(1) of procps)."""


def memory_facts(text: str) -> MemoryFacts | None:
    """Return the facts of the output of ``free``; None where the text has no such table, two of them, or numbers of an unknown unit.

    >>> facts = memory_facts("               total        used        free      shared  buff/cache   available\\nMem:           503Gi        11Gi       440Gi       1.0Gi        52Gi       488Gi\\nSwap:          8.0Gi          0B       8.0Gi\\n")
    >>> facts.total_bytes >> 30, facts.available_bytes >> 30, facts.swap_free_bytes >> 30
    (503, 488, 8)
    """
    tables = list(_TABLE.finditer(text)) if "Swap:" in text else []
    if len(tables) != 1:
        return None
    table = tables[0]
    command = _COMMAND.search(text)
    unit = None if command is None else _unit(command["options"].split())
    memory = [_bytes(cell, unit) for cell in table["memory"].split()]
    swap = [_bytes(cell, unit) for cell in table["swap"].split()]
    facts: dict[str, Any] = {}
    if memory and memory[0] is not None:
        facts["total_bytes"] = memory[0]
        if table["title"].split()[-1] == "available" and len(memory) == len(table["title"].split()) and memory[-1] is not None:
            facts["available_bytes"] = memory[-1]
    if len(swap) == 3 and swap[0] is not None and swap[2] is not None:
        facts |= {"swap_total_bytes": swap[0], "swap_free_bytes": swap[2]}
    return partly(MemoryFacts, **facts) if facts else None


def _unit(options: list[str]) -> int | None:
    """Return the bytes of a unit; None where an option may change it that is not known here.

    >>> _unit([]), _unit(["-mt"]), _unit(["-t", "--gibi"]), _unit(["--si"])
    (1024, 1048576, 1073741824, None)
    """
    words = [word for option in options for word in ([option[2:]] if option.startswith("--") else option[1:])]
    units = [_UNITS[word] for word in words if word in _UNITS]
    if any(word not in _UNITS and word not in _NO_UNITS for word in words):
        return None
    return units[-1] if units else 1 << 10


def _bytes(cell: str, unit: int | None) -> int | None:
    return None if unit is None and natural(cell) not in (None, 0) else size_of(cell.removesuffix("i"), unit or 1)
