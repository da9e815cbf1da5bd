"""Match a line with the message templates, indexed by a rare word of each: thousands of them cost microseconds a line."""

from __future__ import annotations

import bisect
import functools
import os
from typing import NamedTuple

import msgspec

from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.messages import templates
from torchtune_sys.knowledge.messages.templates import Template

_LONGEST = 65536
"""Of a line, what is looked at."""


class CatalogueMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a program of the catalogue prints."""

    program: str
    template: str
    versions: str = ""
    """First and last sampled release that has it, ``2.7.8-2.30.7``; empty: not known."""
    severity: str = ""
    """``error``, ``warning``, ``info``; empty: not known."""
    source: str = ""
    families: tuple[str, ...] = ()
    """What it says, the most telling first; empty where the message is known and means nothing yet."""
    variables: dict[str, str] = {}
    """What stands in the holes that have a name."""

    @property
    def family(self) -> str:
        return self.families[0] if self.families else ""


class _Entry(NamedTuple):
    """A template with where it comes from; ``family`` only for a row of ``message_families.csv``."""

    template: Template
    text: str
    program: str
    versions: str
    severity: str
    source: str
    family: str = ""

    @property
    def weight(self) -> int:
        return self.template.weight


def match(line: str) -> CatalogueMessage | None:
    """Return the message that ``line`` is, or None where no program of the catalogue prints it.

    >>> found = match("gpu01:55:90 [2] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found")
    >>> found.program, found.family
    ('nccl', 'nccl-no-interface')
    >>> match("all is well") is None
    True
    """
    line = " ".join(line[:_LONGEST].split())
    fitting: list[tuple[_Entry, tuple[str, ...]]] = []
    for word in dict.fromkeys(templates.words(line)):
        for row in _rows(word):
            entry = _entry(row)
            held = templates.fitted(entry.template, line)
            if held is not None:
                fitting.append((entry, held))
    if not fitting:
        return None
    fitting.sort(key=lambda each: -each[0].weight)
    families = [each for each in fitting if each[0].family]
    printed = next((entry for entry, _ in fitting if not entry.family), fitting[0][0])
    return CatalogueMessage(
        program=printed.program,
        template=printed.text,
        versions=printed.versions,
        severity=families[0][0].severity if families else printed.severity,
        source=printed.source,
        families=tuple(dict.fromkeys(entry.family for entry, _ in families)),
        variables=_named(families),
    )


def _named(families: list[tuple[_Entry, tuple[str, ...]]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry, held in families:
        for name, value in zip(entry.template.names, held, strict=True):
            if name:
                found.setdefault(name, value)
    return found


@functools.cache
def _entry(row: str) -> _Entry:
    """Return a row of the index; parsed when the first line with its word comes."""
    _, program, versions, severity, source, text, *family = row.split("\t")
    return _Entry(templates.parsed(text), text, program, versions, severity, source, *family)


@functools.cache
def _families() -> dict[str, tuple[str, ...]]:
    """Return the rows of ``message_families.csv`` as rows of the catalogue, by word."""
    found: dict[str, list[str]] = {}
    for family in tables.rows("message_families"):
        text = family["pattern"]
        # The longest word is seldom one that many lines have.
        anchor = max(templates.whole_words(templates.parsed(text)), key=len)
        fields = (anchor, family["program"], "", family["severity"], family["source"], text, family["family"])
        found.setdefault(anchor, []).append("\t".join(fields))
    return {word: tuple(rows) for word, rows in found.items()}


@functools.cache
def catalogued() -> list[str]:
    """Return the rows of ``data/messages.tsv``: word, program, releases, severity, source, text; in the order of their words."""
    path = os.path.join(os.path.dirname(tables.__file__), "data", "messages.tsv")
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()[1:]


@functools.lru_cache(maxsize=65536)
def _rows(word: str) -> tuple[str, ...]:
    """Return what is known by this word."""
    rows, begin = catalogued(), word + "\t"
    first = last = bisect.bisect_left(rows, begin)
    while last < len(rows) and rows[last].startswith(begin):
        last += 1
    return (*rows[first:last], *_families().get(word, ()))
