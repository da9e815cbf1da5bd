"""What each cause is called, what helps against it, and the command that would make it sure."""

from __future__ import annotations

import functools

import msgspec

from torchtune_sys.knowledge import tables


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/causes.csv``."""

    cause: str
    title: str
    fix: str
    confirm: str


@functools.cache
def cause_rows() -> dict[str, CauseRow]:
    return {
        row["cause"]: CauseRow(cause=row["cause"], title=row["title"], fix=row["fix"], confirm=row["confirm"])
        for row in tables.rows("causes")
    }
