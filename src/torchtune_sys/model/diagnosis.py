"""The result of `diagnose`: causes with the lines that decided, unknown errors, and facts about the hosts."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

WORDS = "words of people"
"""The source of a cause of which somebody merely tells, without a program's message."""


class Confidence(str, enum.Enum):
    """How sure it is that a cause is the cause."""

    CERTAIN = "certain"
    """A program says so in words that have no other cause, or facts prove it."""
    LIKELY = "likely"
    """The words have few causes, and what else is known speaks for this one."""
    POSSIBLE = "possible"
    """The words have several causes, and nothing decides."""

    @property
    def rank(self) -> int:
        """Return the place in the order; 0 for the surest."""
        return tuple(Confidence).index(self)


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    """The file, or the member of an archive."""
    line: int
    """Counted from 1; 0 where it is no single line."""
    text: str


class NamedCause(msgspec.Struct, frozen=True, kw_only=True):
    cause: str
    """A slug of ``knowledge/data/causes.csv``."""
    confidence: Confidence
    title: str
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    evidence: tuple[Quote, ...] = ()
    fix: tuple[str, ...] = ()
    confirm: str = ""
    """One command that would make it sure."""
    rules: tuple[str, ...] = ()
    """Rules that found it in the facts."""
    sources: tuple[str, ...] = ()
    """Who prints the words that decided."""


class Unexplained(msgspec.Struct, frozen=True, kw_only=True):
    """An error of a program that no cause explains, or what somebody complains of where no program says what failed."""

    source: str
    line: int
    text: str
    program: str = ""
    place: str = ""
    """Where in the program it was raised, as far as the text tells: file, line and function."""
    fix: str = ""
    """Where to look in the training program, if the words tell of a mistake of its own; empty if nothing knows them."""
    ask: str = ""
    """What to run, or to tell, to find the cause of a complaint, or of why somebody interrupted a program (then ``program`` is python); empty for an error of a program."""
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


class UnreadSource(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    why: str


class FactValue(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    """The host, or the heading of one of two looks at a host."""
    value: Any


class FactDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact in which hosts of one text differ, or a host before and after."""

    fact: str
    """``driver.module_version``"""
    values: tuple[FactValue, ...]
    """Two at least; of two looks at a host the earlier first."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    causes: tuple[NamedCause, ...] = ()
    """The likeliest first."""
    unexplained: tuple[Unexplained, ...] = ()
    waited: tuple[int, ...] = ()
    """Ranks that only tell that a peer is gone or late: what they say follows from another one."""
    unheard: tuple[int, ...] = ()
    """Ranks of the job of which no line was given."""
    facts: dict[str, Any] = {}
    """By source or host, the facts that were read there, by family."""
    differences: tuple[FactDifference, ...] = ()
    """Between hosts, or a host before and after, the heaviest first."""
    unread: tuple[UnreadSource, ...] = ()
    sources: int = 0
    """Texts, recordings and dumps that were read."""
    lines: int = 0
