"""End dates of the distributions' security updates."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge import tables

AS_OF = "2026-08-22"
"""Date of the newest source of the table. A clock that shows an earlier day is wrong."""


READ_ON = "2026-11-21"
"""When the table was read: what ended before has ended, whatever a clock shows."""


class EndOfLife(msgspec.Struct, frozen=True, kw_only=True):
    date: str
    """Last day of public security updates, ISO 8601."""
    extended: str
    """Last day of updates that are sold or need a registration; ``""`` if there are none."""
    extended_by: str
    source: str


_MAJOR_ONLY = frozenset({"debian", "centos", "centos-stream", "rhel", "rocky", "almalinux", "ol", "fedora"})
"""Their point releases are updates, each of which ends the one before."""


def end_of_life(os_id: str, version: str, pretty_name: str = "") -> EndOfLife | None:
    """Return the end of a release by ``ID`` and ``VERSION_ID`` of os-release; None where no date is known.

    >>> end_of_life("centos", "7").date, end_of_life("rocky", "9.4").date, end_of_life("arch", "")
    ('2024-06-30', '2032-05-31', None)
    """
    # CentOS Linux 8 and CentOS Stream 8 have the same ID and VERSION_ID.
    name = "centos-stream" if os_id == "centos" and "stream" in pretty_name.lower() else os_id
    release = version.partition(".")[0] if name in _MAJOR_ONLY else version
    for row in tables.rows("eol"):
        if row["id"] == name and row["version"] == release:
            return EndOfLife(date=row["eol"], extended=row["extended"], extended_by=row["extended_by"], source=row["source"])
    return None


def releases(os_id: str) -> tuple[str, ...]:
    """Return every ``VERSION_ID`` of a distribution whose end is known."""
    return tuple(row["version"] for row in tables.rows("eol") if row["id"] == os_id)


def over(os_id: str, version: str, pretty_name: str = "", today: str = "") -> EndOfLife | None:
    """Return the end of a release that has passed; None where its updates go on, or no date is known."""
    end = end_of_life(os_id, version, pretty_name)
    return end if end is not None and end.date < max(today, READ_ON) else None
