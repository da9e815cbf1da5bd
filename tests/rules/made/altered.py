"""A recorded host with single facts replaced, and one rule asked about it."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from conftest import judge_one
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import by_id

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA


def altered(seen: Snapshot, **facts: Any) -> Snapshot:
    """``altered(seen, cpu__quota=4.0, pci=DENIED)``: a family's fact, or a whole family."""
    for name, value in facts.items():
        family, _, field = name.partition("__")
        changed = msgspec.structs.replace(getattr(seen, family), **{field: value}) if field else value
        seen = msgspec.structs.replace(seen, **{family: changed})
    return seen


def asked(seen: Snapshot, **intent: Any) -> Snapshot:
    """The same host, with nothing asked for but this."""
    return msgspec.structs.replace(seen, intent=Workload(**intent))


def with_env(seen: Snapshot, env: dict[str, str]) -> Snapshot:
    return altered(seen, session__env=env)


@cache
def the_rule(rule_id: str) -> Rule:
    return by_id()[rule_id]


def result(seen: Snapshot, rule_id: str) -> Result:
    return judge_one(seen, rule_id)


def verdict(seen: Snapshot, rule_id: str) -> Verdict:
    return result(seen, rule_id).verdict


def lines(seen: Snapshot, rule_id: str) -> list[tuple[str, Verdict]]:
    """Subject and verdict of each piece of evidence."""
    return [(item.subject, item.verdict) for item in result(seen, rule_id).evidence]
