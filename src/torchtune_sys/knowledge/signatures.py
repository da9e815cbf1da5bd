"""Words of programs that stand for causes, line by line, and what each cause is called."""

from __future__ import annotations

import functools
import re

import msgspec

from torchtune_sys.knowledge import tables


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/signatures.csv``."""

    causes: tuple[str, ...]
    """Candidates, the likeliest first; empty where the words follow from another error."""
    role: str
    """``cause``, ``hint``, ``consequence``, ``inventory`` or ``noise``."""
    program: str
    source: str


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/causes.csv``."""

    cause: str
    title: str
    fix: str
    confirm: str


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    pattern: re.Pattern[str]
    also: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None
    found: Signature


@functools.cache
def _rows() -> tuple[_Row, ...]:
    return tuple(
        _Row(
            pattern=re.compile(row["pattern"]),
            also=tuple(re.compile(part) for part in row["also"].split(" && ") if part),
            unless=re.compile(row["unless"]) if row["unless"] else None,
            found=Signature(
                causes=tuple(filter(None, row["cause"].split("|"))),
                role=row["role"],
                program=row["program"],
                source=row["source"],
            ),
        )
        for row in tables.rows("signatures")
    )


@functools.cache
def cause_rows() -> dict[str, CauseRow]:
    return {
        row["cause"]: CauseRow(cause=row["cause"], title=row["title"], fix=row["fix"], confirm=row["confirm"])
        for row in tables.rows("causes")
    }


class Book:
    """The signatures as one text has them: what stands elsewhere in it is looked for once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked: dict[re.Pattern[str], bool] = {}

    def signature(self, line: str) -> Signature | None:
        """What ``line`` says, by the first row that fits.

        >>> Book("").signature("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.").causes
        ('dev-shm-too-small',)
        >>> Book("").signature("all is well, and there are no errors") is None
        True
        """
        for row in _rows():
            if row.pattern.search(line) and all(map(self._there, row.also)) and not (row.unless and self._there(row.unless)):
                return row.found
        return None

    def _there(self, pattern: re.Pattern[str]) -> bool:
        if pattern not in self._asked:
            self._asked[pattern] = pattern.search(self._text) is not None
        return self._asked[pattern]
