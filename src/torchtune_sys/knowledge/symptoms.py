"""What an error text stands for."""

from __future__ import annotations

import functools
import re

import msgspec

from torchtune_sys.knowledge import tables


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/symptoms.csv``."""

    causes: tuple[str, ...]
    """Slugs, the likeliest first."""
    remedy: str
    source: str
    sure: bool = True
    """The words stand for nothing else that is known."""


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], frozenset[str], Symptom], ...]:
    return tuple(
        (
            re.compile(row["pattern"], re.IGNORECASE | re.DOTALL),
            frozenset(filter(None, row["stage"].split(","))),
            Symptom(
                causes=tuple(row["cause"].split("|")),
                remedy=row["remedy"],
                source=row["source"],
                sure=row["confidence"] == "high",
            ),
        )
        for row in tables.rows("symptoms")
    )


def symptom(text: str, stage: str = "") -> Symptom | None:
    """The first row whose words are in ``text``; rows for certain stages only where ``stage`` is one of them.

    >>> symptom("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.").causes
    ('dev-shm-too-small',)
    >>> symptom("OSError: [Errno 28] No space left on device", "checkpoint").causes
    ('disk-full-or-quota',)
    >>> symptom("all is well") is None
    True
    """
    for pattern, stages, found in _patterns():
        if (not stages or stage in stages) and pattern.search(text):
            return found
    return None
