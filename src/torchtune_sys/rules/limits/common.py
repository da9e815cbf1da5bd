"""A limit of the session as evidence."""

from __future__ import annotations

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need

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


def verdict_on(fails: bool) -> Verdict:
    return Verdict.FAIL if fails else Verdict.PASS
