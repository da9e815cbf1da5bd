"""Differences between hosts, or between two snapshots of one: outliers, groups of hosts, and what cannot be compared."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class DifferenceWeight(str, enum.Enum):
    """How heavy a difference is: as the severity of the worst rule that reads the fact."""

    ERROR = "error"
    """What breaks training."""
    WARNING = "warning"
    """What slows it, or makes it fragile."""
    ADVICE = "advice"
    NOISE = "noise"
    """No rule reads it."""

    @property
    def rank(self) -> int:
        """Return the place in the order; 0 for the heaviest."""
        return tuple(DifferenceWeight).index(self)


class Odd(msgspec.Struct, frozen=True, kw_only=True):
    """One fact in which a host differs from those that it should be like."""

    host: str
    fact: str
    """``network.interfaces[eth0].mtu``"""
    value: Any
    """``null`` where the host has nothing of that name; ``{"$missing": why}`` where the fact has no value."""
    usual: Any
    weight: DifferenceWeight
    rules: tuple[str, ...] = ()
    """Rules that read the fact, the worst first; three at most."""


class GroupFact(msgspec.Struct, frozen=True, kw_only=True):
    fact: str
    value: Any
    weight: DifferenceWeight


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that agree among themselves, where others agree upon something else."""

    division: int
    """Groups of one division are what the hosts fall into by the same facts; counted from 1."""
    hosts: tuple[str, ...]
    facts: tuple[GroupFact, ...]
    """Those that make the division, the heaviest first, with this group's values."""


class Various(msgspec.Struct, frozen=True, kw_only=True):
    """A fact upon which the hosts do not agree at all."""

    fact: str
    values: int
    """How many different ones."""
    hosts: int
    weight: DifferenceWeight


GONE = "was there before, and is not now"
"""Why a host is not compared with what it was."""


class Incomparable(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    why: str


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A file, a line or a host that gave nothing to compare, or less than others."""

    name: str
    why: str
    partly: bool = False
    """Whether the rest of it is compared."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that are compared among themselves."""

    name: str
    hosts: int


class HostFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What check, or a pre-flight, found on hosts."""

    rule: str
    weight: DifferenceWeight
    hosts: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    hosts: int
    """How many were read."""
    against: str
    """``majority``, ``golden`` or ``before``."""
    kinds: tuple[Kind, ...] = ()
    odd: tuple[Odd, ...] = ()
    """The heaviest first."""
    groups: tuple[Group, ...] = ()
    various: tuple[Various, ...] = ()
    incomparable: tuple[Incomparable, ...] = ()
    unread: tuple[Unread, ...] = ()
    findings: tuple[HostFinding, ...] = ()
    """By rule, where the files tell them; the heaviest first."""
