"""Hosts and words that the boundary tests of hardware share."""

from __future__ import annotations

from typing import Any

import msgspec

from conftest import judge_one
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import hardware

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
BY_ID = {rule.id: rule for rule in hardware.RULES}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA
DAY = 86_400.0


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def judged(seen: Snapshot, rule_id: str) -> Result:
    return judge_one(seen, rule_id)
