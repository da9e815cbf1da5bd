"""Rows of the data tables that are shipped with the package."""

from __future__ import annotations

import functools
import os

Row = dict[str, str]


@functools.cache
def rows(name: str) -> tuple[Row, ...]:
    """Return the rows of ``data/<name>.csv`` by column name; lines that start with # are comments."""
    from csv import reader

    path = os.path.join(os.path.dirname(__file__), "data", f"{name}.csv")
    with open(path, encoding="utf-8", newline="") as file:
        lines = reader(line for line in file if not line.startswith("#"))
        names = next(lines)
        return tuple(dict(zip(names, line, strict=True)) for line in lines)
