"""Lists of faults, each written down and committed before anything was built for it, numbered in that order (the first is what the modules beside this
folder hold by subject).

A list has parts: what was opened after the first result, what stayed sealed until the end and counts by its only run, faults like those of somebody
else's list (``alike``), faults from reports, and what breaks nothing (``harmless``: no stage may fail). ``results.md`` and ``results.py`` say how each
was graded at first and last.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from smoke.faults.row import Fault

HERE = Path(__file__).parent
PARTS = ("reported", "opened", "sealed", "alike")
HARMLESS = "harmless"
_NOT_IN_TESTS = (
    "19-opened",
    "19-sealed",
    "20-sealed",
    "22-opened",
    "22-sealed",
    "23-opened",
    "23-sealed",
    "24-opened",
    "24-sealed",
    "25-opened",
    "25-sealed",
    "26-opened",
    "26-sealed",
    "27-opened",
    "27-sealed",
    "28-opened",
    "28-sealed",
    "29-opened",
    "29-sealed",
    "30-opened",
    "30-sealed",
)
"""What is tried by hand alone."""


def numbers() -> list[int]:
    """Return the numbers of the lists, the oldest first."""
    return sorted(int(place.name.removeprefix("list_")) for place in HERE.glob("list_*"))


def folder(number: int) -> Path:
    """Return where a list lies."""
    return HERE / f"list_{number:02}"


def rows(number: int, part: str) -> tuple[Fault, ...]:
    """Return the rows of a part of a list; none where the list has no such part."""
    place = folder(number)
    return tuple(importlib.import_module(f"{__name__}.{place.name}.{part}").ROWS) if (place / f"{part}.py").is_file() else ()


def by_name() -> dict[str, tuple[Fault, ...]]:
    """Return the rows of each part of each list by what the command line calls it: ``18-opened``."""
    parts = {f"{number}-{part}": rows(number, part) for number in numbers() for part in (*PARTS, HARMLESS)}
    return {name: found for name, found in parts.items() if found}


def in_tests() -> tuple[Fault, ...]:
    """Return the rows that the tests try."""
    left_out = (HARMLESS, *_NOT_IN_TESTS)
    return tuple(row for name, found in by_name().items() if not name.endswith(left_out) for row in found)
