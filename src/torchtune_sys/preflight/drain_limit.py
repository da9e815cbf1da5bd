"""Limit how many nodes may be judged bad in a time window. The same failure on many nodes at once points to the checker or the image."""

from __future__ import annotations

import re

import msgspec

from torchtune_sys.errors import CannotWrite
from torchtune_sys.host import slots
from torchtune_sys.model.preflight import Cause
from torchtune_sys.preflight.verdict import fault

TAINTED_AT_MOST = "10%"


class TaintLimit(msgspec.Struct, frozen=True):
    """How many nodes of a Kubernetes cluster may have our taint at once: a number, or a percentage of all nodes."""

    number: int
    is_percentage: bool = False

    def nodes(self, of_all: int) -> int:
        """Return the number of nodes, rounded down, as Kubernetes rounds what may be unavailable; in a small cluster at least one.

        >>> [parse_taint_limit("10%").nodes(of_all) for of_all in (1, 19, 20, 1000)], parse_taint_limit("3").nodes(1000)
        ([1, 1, 2, 100], 3)
        """
        return max(of_all * self.number // 100, 1) if self.is_percentage else self.number

    def __str__(self) -> str:
        return f"{self.number}{'%' if self.is_percentage else ''}"


def parse_taint_limit(text: str) -> TaintLimit:
    """Return the limit that the text names. Raises ValueError.

    >>> parse_taint_limit("4"), parse_taint_limit("25%")
    (TaintLimit(number=4, is_percentage=False), TaintLimit(number=25, is_percentage=True))
    """
    found = re.fullmatch(r"([1-9][0-9]{0,5})(%?)", text, re.ASCII)
    if found is None or (found[2] and int(found[1]) > 100):
        raise ValueError(f"{text!r} is neither a number of nodes, 1 at least, nor a percentage up to 100%.")
    return TaintLimit(int(found[1]), bool(found[2]))


class DrainLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``nodes`` in ``window_s`` seconds, in each failure domain, as a shared directory tells."""

    folder: str
    nodes: int
    window_s: float
    domain: str = ""

    def hold(self, node: str) -> Cause | None:
        """Take a place for ``node``; what speaks against calling it bad where there is none, or where nobody can tell."""
        domain = re.sub(r"[^A-Za-z0-9._-]", "_", self.domain).lstrip(".") or "all"
        try:
            held, others = slots.take(f"{self.folder}/{domain}", node, self.nodes, self.window_s)
        except OSError as error:
            return fault(f"the drain limit could not be read: {error.filename or self.folder}: {error.strerror}")
        except CannotWrite as error:
            return fault(
                f"the drain limit is not kept, and this node is left in service: {error.seen}; remove that, or let --drain-state "
                "name a directory that root alone may write to"
            )
        if held:
            return None
        return fault(
            f"{self.nodes} nodes were judged bad within {self.window_s:g} s ({', '.join(others)}): suspect the checker or the image; "
            "this node is left in service"
        )
