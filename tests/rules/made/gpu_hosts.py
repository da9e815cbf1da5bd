"""Hosts and words that the boundary tests of gpu share."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from conftest import judge_one, load
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import gpu as rules_of_gpus

RULES: dict[str, Rule] = {rule.id: rule for rule in rules_of_gpus.RULES}
FIRST, FOURTH = "0000:1b:00.0", "0000:61:00.0"
replace = msgspec.structs.replace
seen = cache(load)


def gone(why: Why) -> Missing:
    return Missing(why, "test")


UNSAID, REFUSED, UNTOLD = gone(Why.NOT_SUPPORTED), gone(Why.DENIED), gone(Why.NOT_RECORDED)


def healthy() -> Snapshot:
    return seen("healthy")


def gpu_facts(host: Snapshot) -> GpuFacts:
    assert not isinstance(host.gpu, Missing)
    return host.gpu


def gpus(host: Snapshot) -> tuple[Gpu, ...]:
    found = gpu_facts(host).devices
    assert not isinstance(found, Missing)
    return found


def having(host: Snapshot, *changes: dict[str, Any], **facts: Any) -> Snapshot:
    """The first GPU changed by the first of ``changes``, and so on; facts of NVML as a whole beside."""
    old = gpus(host)
    changed = (replace(gpu, **change) for gpu, change in zip(old, changes, strict=False))
    return replace(host, gpu=replace(gpu_facts(host), **{"devices": (*changed, *old[len(changes) :]), **facts}))


def number(host: Snapshot, count: int) -> Snapshot:
    return replace(host, gpu=replace(gpu_facts(host), devices=gpus(host)[:count]))


def every(host: Snapshot, **facts: Any) -> Snapshot:
    return having(host, *([facts] * len(gpus(host))))


def last(host: Snapshot, **facts: Any) -> Snapshot:
    return having(host, *([{}] * (len(gpus(host)) - 1)), facts)


def with_system(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.system, Missing)
    return replace(host, system=replace(host.system, **facts))


def with_session(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.session, Missing)
    return replace(host, session=replace(host.session, **facts))


def judged(rule: str, host: Snapshot) -> Result:
    return judge_one(host, rule)


def verdict(rule: str, host: Snapshot) -> str:
    return judged(rule, host).verdict.value


def failed(rule: str, host: Snapshot) -> list[int]:
    """Numbers of the GPUs (the first of a pair) that fail."""
    return [int(item.subject.split()[1]) for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


def words(rule: str, host: Snapshot) -> list[str]:
    return [item.seen for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]
