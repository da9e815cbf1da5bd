"""Hosts and words that the boundary tests of storage share."""

from __future__ import annotations

from typing import Any

import msgspec

from conftest import judge_one
from torchtune_sys.model.facts.storage import Disk, StorageFacts, StoragePath
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import storage

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
BY_ID = {rule.id: rule for rule in storage.RULES}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA


def facts(seen: Snapshot) -> StorageFacts:
    assert not isinstance(seen.storage, Missing)
    return seen.storage


def first(seen: Snapshot) -> StoragePath:
    return next(place for place in facts(seen).places if place.role == "working directory")


def disk(seen: Snapshot, **changed: Any) -> Disk:
    disks = first(seen).disks
    assert not isinstance(disks, Missing)
    return msgspec.structs.replace(disks[0], **changed)


def with_places(seen: Snapshot, *places: dict[str, Any]) -> Snapshot:
    """The healthy host with these places in the stead of its own, each described by how it differs from the working directory."""
    found = tuple(msgspec.structs.replace(first(seen), path=f"/p{number}", **place) for number, place in enumerate(places))
    return msgspec.structs.replace(seen, storage=msgspec.structs.replace(facts(seen), places=found))


def judged(seen: Snapshot, rule_id: str) -> Result:
    return judge_one(seen, rule_id)


def verdicts(seen: Snapshot, rule_id: str, *places: dict[str, Any]) -> list[Verdict]:
    return [item.verdict for item in judged(with_places(seen, *places), rule_id).evidence]
