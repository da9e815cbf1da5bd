"""Hosts and words that the boundary tests of kernel share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from conftest import HOSTS, judge, judge_one, load
from torchtune_sys import evidence
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import kernel

DENIED = Missing(Why.DENIED, "test")
BY_ID = {rule.id: rule for rule in kernel.RULES}
DAY = 86_400.0
NOW = 30 * DAY
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA


def event(kind: str, subject: str = "x", at: float | None = NOW - 60, **more: Any) -> KernelEvent:
    """A message of this kind a minute ago."""
    return KernelEvent(kind=kind, subject=subject, **{"text": f"{kind} of {subject}", "first_s": at, "last_s": at, **more})


def log(*events: KernelEvent, **facts: Any) -> KernelFacts:
    return KernelFacts(
        **{"events": events, "source": "/dev/kmsg", "from_s": 0.0, "now_s": NOW, "booted": 1.7e9, "whole": True, **facts}
    )


def with_log(seen: Snapshot, *events: KernelEvent, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, kernel=log(*events, **facts))


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def judged(seen: Snapshot, rule_id: str) -> Result:
    return judge_one(seen, rule_id)


def subjects(seen: Snapshot, rule_id: str, *events: KernelEvent, **facts: Any) -> list[str]:
    """What the rule blames."""
    return [item.subject for item in judged(with_log(seen, *events, **facts), rule_id).evidence if item.verdict is FAIL]


def pasted(text: str) -> Mapping[str, Result]:
    seen = evidence.read(text, "log.txt")
    assert seen is not None
    assert "kernel log" in seen.origin
    return judge(seen)


def failing(results: Mapping[str, Result]) -> set[str]:
    assert not [result.note for result in results.values() if result.verdict is Verdict.CRASHED]
    return {name for name, result in results.items() if result.verdict is Verdict.FAIL}


def live(*lines: str, **more: Any) -> Mapping[str, Result]:
    """The healthy host with these lines in its log."""
    answer = load_recording(str(HOSTS / "base-kernel.json"))["answers"]["kernel-log"]
    files = more.pop("files", {})
    return judge(load("healthy", answers={"kernel-log": {**answer, "lines": [*answer["lines"], *lines], **more}}, files=files))
