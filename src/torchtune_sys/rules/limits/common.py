"""A limit of the session as evidence."""

from __future__ import annotations

from collections.abc import Callable

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.rule import Evidence, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need
from torchtune_sys.rules.amounts import size

SOURCE = "getrlimit"
IN_CONTAINER = (
    "in a container: docker run --ulimit {0}; under Slurm: set the limit in slurmd.service, and PropagateResourceLimitsExcept"
)


def limit_of(s: Snapshot, name: str) -> SessionLimit:
    limits = need(s.limits).limits
    found: Fact[SessionLimit] | None = limits.get(name)
    if found is None:
        raise NotApplicable(f"this system has no limit {name}")
    return need(found)


def count(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def below(value: int | None, floor: int) -> bool:
    return value is not None and value < floor


def both(limit: SessionLimit, worded: Callable[[int | None], str] = size) -> str:
    """Return the words for the soft and the hard value of a limit."""
    return f"soft {worded(limit.soft)}, hard {worded(limit.hard)}"


def should_be_unlimited(item: str, limit: SessionLimit, floor: int, worded: Callable[[int | None], str] = size) -> Evidence:
    """Return evidence on a limit that fails where its soft value is below ``floor``."""
    return Evidence(
        subject=item,
        seen=both(limit, worded),
        wanted="unlimited",
        verdict=verdict_on(below(limit.soft, floor)),
        source=SOURCE,
    )


def verdict_on(fails: bool) -> Verdict:
    return Verdict.FAIL if fails else Verdict.PASS
