"""Causes: their titles, remedies, and the commands that confirm them."""

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


def usual_fix(cause: str) -> str:
    """Return what helps against a cause where the one that saw it says no more; ``""`` for a cause without a row.

    >>> usual_fix("loopback-down"), usual_fix("no-such-cause")
    ('ip link set lo up', '')
    """
    if row := cause_rows().get(cause):
        return row.fix
    return next((each["fix"] for each in tables.rows("smoke_fixes") if cause in each["causes"].split()), "")


def messages_of(cause: str) -> tuple[str, ...]:
    """Return the messages that stand for a cause, as the programs print them, each after its program.

    >>> messages_of("host-memory-oom")[0]
    'linux: Out of memory: Killed process {pid} ({name})'
    """
    families = {row["family"] for row in tables.rows("family_causes") if row["cause"] == cause}
    return tuple(f"{row['program']}: {row['pattern']}" for row in tables.rows("message_families") if row["family"] in families)
