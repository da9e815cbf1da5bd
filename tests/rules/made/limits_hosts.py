"""Hosts and words that the boundary tests of limits share."""

from __future__ import annotations

from typing import Any

import msgspec

from conftest import judge_one
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import limits, memory

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
UNTOLD = Missing(Why.NOT_SUPPORTED, "test")
BY_ID = {rule.id: rule for rule in (*limits.RULES, *memory.RULES)}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA
MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def with_intent(seen: Snapshot, **intent: Any) -> Snapshot:
    return msgspec.structs.replace(seen, intent=Workload(**intent))


def without_gpus(seen: Snapshot) -> Snapshot:
    return changed(changed(seen, "gpu", devices=()), "driver", nvidia_devices=(), amd_devices=())


def judged(seen: Snapshot, rule_id: str) -> Result:
    return judge_one(seen, rule_id)


def limited(seen: Snapshot, name: str, soft: int | None, hard: int | None = None) -> Snapshot:
    assert not isinstance(seen.limits, Missing)
    return changed(seen, "limits", limits={**seen.limits.limits, name: SessionLimit(soft=soft, hard=hard)})
