"""Lists of faults of a host, each written down and committed before ``check`` was run on any of it, numbered in that order. Every third row stayed
sealed until what the others asked for was built (the second list is the sealed part of the first)."""

from __future__ import annotations

import importlib
from pathlib import Path

from live_faults.row import Fault


def by_number() -> dict[int, tuple[Fault, ...]]:
    """Return the rows of each list, the oldest first."""
    names = sorted(file.stem for file in Path(__file__).parent.glob("list_??.py"))
    return {int(name.removeprefix("list_")): tuple(importlib.import_module(f"{__name__}.{name}").ROWS) for name in names}
