"""The causes that a family of messages stands for, and the facts that decide among them."""

from __future__ import annotations

import functools

import msgspec

from torchtune_sys.knowledge import tables


class MessageCause(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/family_causes.csv``."""

    cause: str
    """A slug; empty where the message is only a consequence of something else."""
    confidence: str
    """How sure the message alone makes it: ``certain``, ``likely``, ``possible``."""
    only_if: tuple[str, ...] = ()
    """Facts of which one must hold: ``rule:ID`` (it fails), ``family:NAME`` (said too), ``text:WORDS`` (in the evidence), ``var:NAME=a|b``."""
    decided_by: tuple[str, ...] = ()
    """Facts, of which one makes it certain."""
    unless: tuple[str, ...] = ()
    """Facts, of which one rules it out."""
    consequence: bool = False
    """Printed by who suffers: another message has the cause, if there is one."""
    fix: str = ""
    confirm: str = ""
    """A command whose output would make it sure."""
    source: str = ""


def holds_of(fact: str, variables: dict[str, str]) -> bool:
    """Return whether a fact ``var:NAME=a|b`` holds: the hole's text is one of them, or begins with it as a word.

    >>> holds_of("var:errno=Connection refused|timeout", {"errno": "Connection refused (try 3)"})
    True
    >>> holds_of("var:xid=7", {"xid": "79"})
    False
    """
    name, _, values = fact.removeprefix("var:").partition("=")
    held = variables.get(name, "")
    return any(held == value or (held.startswith(value) and not held[len(value)].isalnum()) for value in values.split("|"))


@functools.cache
def _by_family() -> dict[str, tuple[MessageCause, ...]]:
    found: dict[str, list[MessageCause]] = {}
    for row in tables.rows("family_causes"):
        found.setdefault(row["family"], []).append(
            MessageCause(
                cause=row["cause"],
                confidence=row["confidence"] or "possible",
                only_if=_facts(row["only_if"]),
                decided_by=_facts(row["decided_by"]),
                unless=_facts(row["unless"]),
                consequence=row["role"] == "consequence",
                fix=row["fix"],
                confirm=row["confirm"],
                source=row["source"],
            )
        )
    return {family: tuple(causes) for family, causes in found.items()}


def _facts(cell: str) -> tuple[str, ...]:
    return tuple(fact.strip() for fact in cell.split(";") if fact.strip())


def causes_of(family: str) -> tuple[MessageCause, ...]:
    """Return the causes of a family, likeliest first; empty where it is not known or means nothing.

    >>> [each.cause for each in causes_of("nccl-no-interface")]
    ['nccl-wrong-interface']
    >>> causes_of("no such family")
    ()
    """
    return _by_family().get(family, ())


def families() -> frozenset[str]:
    return frozenset(_by_family())
