"""What the C library, shells, compilers, linkers and package managers of a distribution say in other languages, in English."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec

from torchtune_sys.knowledge import tables

ERRORS = (
    "Address already in use", "Bad address", "Cannot allocate memory", "Cannot assign requested address", "Connection refused",
    "Connection timed out", "Disk quota exceeded", "Exec format error", "Function not implemented", "Input/output error",
    "Invalid argument", "Network is unreachable", "No locks available", "No route to host", "No space left on device",
    "No such device", "No such file or directory", "Operation not permitted", "Operation not supported", "Permission denied",
    "Resource temporarily unavailable", "Stale file handle", "Too many open files", "Transport endpoint is not connected",
)  # fmt: skip
"""strerror(3), of which programs in Go and Rust, and people, write the letters in another case."""
SHORTEST = 8
"""Letters of a translation in an alphabet; shorter ones are words that texts have for other reasons, and count only where they stand alone."""
_HOLE = re.compile(r"\{(\d)\}")
_AT_AN_END, _WITHIN = r"[^\s:]\S{0,160}", r"\S.{0,160}?"
_QUOTES = "'\"`´‘’‚“”„«»「」『』 "


class Translation(msgspec.Struct, frozen=True):
    """One message in another language."""

    words: str
    """With {1} for what it names first."""
    english: str
    longest: str
    """Of its words, between what it names."""


@functools.cache
def _pattern(words: str) -> re.Pattern[str]:
    """Return what finds a message; compiled for those alone that a text has."""
    pieces = _HOLE.split(words)
    texts, numbers = pieces[::2], pieces[1::2]
    found = re.escape(texts[0])
    for at, (number, text) in enumerate(zip(numbers, texts[1:], strict=True)):
        is_at_an_end = (at == 0 and not texts[0]) or (at == len(numbers) - 1 and not text)
        found += f"(?P<at{number}>{_AT_AN_END if is_at_an_end else _WITHIN}){re.escape(text)}"
    return re.compile(rf"(?<=\d ){found}(?=  )|^\W*{found}\W*$" if not numbers and is_short(words) else found)


def is_short(words: str) -> bool:
    """Whether a message is no more than a word.

    >>> is_short("Убито"), is_short("已杀死")
    (True, False)
    """
    return len(words) < SHORTEST and min(words) < "\u2e80"


@functools.cache
def _translations() -> tuple[tuple[Translation, ...], tuple[Translation, ...]]:
    """Return all, and those in plain letters; the longest first: one may be a part of another."""
    rows = tables.rows("translations")
    all_ = (Translation(row["words"], row["english"], max(_HOLE.sub("\n", row["words"]).split("\n"), key=len)) for row in rows)
    found = sorted(all_, key=lambda each: -len(each.longest))
    return tuple(found), tuple(each for each in found if each.longest.isascii())


def translations_in(text: str) -> Sequence[Translation]:
    """Return those that occur in the text.

    >>> [each.english for each in translations_in("cp: Permiso denegado")]
    ['Permission denied']
    """
    return [each for each in _translations()[text.isascii()] if each.longest in text]


def in_english(line: str, known: Sequence[Translation]) -> str:
    """Return the line with these messages in English.

    >>> line = "bash: nvcc: Kommando nicht gefunden."
    >>> in_english(line, translations_in(line))
    'bash: nvcc: command not found'
    """
    for each in known:
        if each.longest in line:
            line = _pattern(each.words).sub(functools.partial(_filled, each.english), line)
    return line


def _filled(english: str, found: re.Match[str]) -> str:
    held = found.groupdict()
    return _HOLE.sub(lambda hole: (held[f"at{hole[1]}"] or "").strip(_QUOTES), english)
