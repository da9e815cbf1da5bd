"""What an error text stands for."""

from __future__ import annotations

import functools
import re

import msgspec

from torchtune_sys.knowledge import signatures, tables


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
    """The first row whose words are in ``text``, rows for certain stages only where ``stage`` is one of them; else what signatures.csv knows.

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
    return _signed(text)


_ROLES = ("cause", "hint")
_LINES = 400


def _signed(text: str) -> Symptom | None:
    """What ``diagnose`` knows of the words; those that have one cause first."""
    book = signatures.Book(text)
    found = [book.signature(line) for line in text.splitlines()[:_LINES]]
    known = [each for each in found if each is not None and each.role in _ROLES and len(each.causes) == 1]
    if not known:
        return None
    best = min(known, key=lambda each: _ROLES.index(each.role))
    row = signatures.cause_rows().get(best.causes[0])
    return Symptom(causes=best.causes, remedy=row.fix if row is not None else "", source=best.source, sure=best.role == "cause")
