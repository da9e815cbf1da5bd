"""Facts: a value, or ``Missing`` with the reason."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeGuard, TypeVar

import msgspec

T = TypeVar("T")
P = ParamSpec("P")


class Why(str, enum.Enum):
    """Why a fact has no value."""

    ABSENT = "absent"
    """The host was looked at, and the thing is not there."""
    DENIED = "denied"
    """Permission was refused; with a privilege it could be found out."""
    NO_TOOL = "no-tool"
    """A program or library needed for the look is not installed."""
    TIMEOUT = "timeout"
    """The look did not end before its deadline."""
    FAILED = "failed"
    """The look ended in an error of its own (I/O error, non-zero exit)."""
    UNPARSED = "unparsed"
    """Something was read that this version cannot interpret."""
    NOT_SUPPORTED = "not-supported"
    """This kernel, driver or device does not offer the reading."""
    HIDDEN = "hidden"
    """It is there, as something else on the host shows, and cannot be seen from here (a sandbox, a container without /sys)."""
    NOT_RECORDED = "not-recorded"
    """The host is a recording or a report that does not hold this fact."""
    CRASHED = "crashed"
    """The probe raised: a bug of torchtune-sys, reported as such."""


class Missing(msgspec.Struct, frozen=True, omit_defaults=True, rename={"why": "$missing"}):
    """A fact without a value. It has no truth value on purpose: unknown is not False.

    ``source`` names where was looked (a path, a command, an NVML call); ``detail`` what was
    seen there; ``remedy`` the privilege or tool that would find out, where one is known.
    """

    why: Why
    source: str
    detail: str = ""
    remedy: str = ""

    def __bool__(self) -> NoReturn:
        raise TypeError(f"a missing fact ({self.why.value}: {self.source}) has no truth value; use need()")

    def __str__(self) -> str:
        return f"{self.source}: {self.detail or self.why.value}"


class Unknown(Exception):
    """Stops a rule with the verdict *unknown*, or the reading of a :func:`fact`; raised by :func:`need`."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(str(missing))
        self.missing = missing


class NotApplicable(Exception):
    """Stops a rule with the verdict *na*: there is nothing here to judge (no GPU, no swap …)."""


def need(fact: T | Missing) -> T:
    """Return the value of a fact, or stop the rule with the verdict *unknown*, the reading of a :func:`fact` with the same reason.

    >>> need(3)
    3
    """
    if isinstance(fact, Missing):
        raise Unknown(fact)
    return fact


def fact(read: Callable[P, T]) -> Callable[P, T | Missing]:
    """Make a function return why something that it needs is missing, instead of raising.

    >>> double = fact(lambda seen: 2 * need(seen))
    >>> double(3), str(double(Missing(Why.ABSENT, "/proc/swaps")))
    (6, '/proc/swaps: absent')
    """

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T | Missing:
        try:
            return read(*args, **kwargs)
        except Unknown as unknown:
            return unknown.missing

    return reading


def need_if_there(fact: T | Missing, otherwise: str) -> T:
    """Return the same as :func:`need`; NotApplicable, with this reason, where the thing is not there.

    >>> need_if_there("mlx5_0", otherwise="there is no RDMA device")
    'mlx5_0'
    """
    if absent(fact):
        raise NotApplicable(otherwise)
    return need(fact)


def need_any(fact: T | Missing, otherwise: str) -> T:
    """Return the same as :func:`need_if_there`; NotApplicable also where the list is empty.

    >>> need_any(("nvme0n1",), otherwise="no disk")
    ('nvme0n1',)
    """
    found = need_if_there(fact, otherwise)
    if not found:
        raise NotApplicable(otherwise)
    return found


def known_or_unknown(fact: T | Missing, default: T) -> T:
    """Return the same as :func:`known`, but what is there and hidden stops the rule with the verdict *unknown*."""
    if isinstance(fact, Missing) and fact.why is Why.HIDDEN:
        raise Unknown(fact)
    return known(fact, default)


def known(fact: T | Missing, default: T) -> T:
    """Return the value of a fact, or ``default`` where not knowing must not stop the rule.

    Only for evidence that adds to a verdict, never for the fact that decides it.
    """
    return default if isinstance(fact, Missing) else fact


def absent(fact: object) -> bool:
    """Return True if the host was looked at and the thing is not there (as opposed to: could not look)."""
    return isinstance(fact, Missing) and fact.why is Why.ABSENT


def absent_or_unrecorded(fact: object) -> TypeGuard[Missing]:
    """Return True if the thing is not there, or the recording or report does not hold it: no look at it was refused or failed."""
    return isinstance(fact, Missing) and fact.why in (Why.ABSENT, Why.NOT_RECORDED)


def absent_or_unsupported(fact: object) -> TypeGuard[Missing]:
    """Return True if the thing is not there, or this kernel, driver or device offers no reading of it."""
    return isinstance(fact, Missing) and fact.why in (Why.ABSENT, Why.NOT_SUPPORTED)
