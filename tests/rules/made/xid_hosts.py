"""Hosts and words that the boundary tests of xid share."""

from __future__ import annotations

from typing import Any

import msgspec

from conftest import judge_one
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import kernel

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
BY_ID = {rule.id: rule for rule in kernel.RULES}
WEEK = {"days": 7}
DAY = 86_400.0
NOW = 30 * DAY
T = NOW - 20_000
ONE, TWO = "0000:61:00.0", "0000:9d:00.0"
STRANGE = "0000:ff:00.0"
"""No GPU that the driver serves."""


PASS, FAIL, NA = Verdict.PASS, Verdict.FAIL, Verdict.NA


def event(kind: str, subject: str = ONE, at: float | None = T, **more: Any) -> KernelEvent:
    return KernelEvent(kind=kind, subject=subject, **{"text": f"{kind} of {subject}", "first_s": at, "last_s": at, **more})


def xid(code: int, at: float | None = T, gpu: str = ONE, **more: Any) -> KernelEvent:
    return event("xid", gpu, at, code=code, **{"text": f"Xid (PCI:{gpu}): {code}, x", **more})


def with_log(seen: Snapshot, *events: KernelEvent, **facts: Any) -> Snapshot:
    told = {"events": events, "source": "/dev/kmsg", "from_s": 0.0, "now_s": NOW, "booted": 1.7e9, "whole": True, **facts}
    return msgspec.structs.replace(seen, kernel=KernelFacts(**told))


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def gpus(seen: Snapshot) -> tuple[Gpu, ...]:
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    return seen.gpu.devices


def with_lost(seen: Snapshot, *addresses: str) -> Snapshot:
    """The same host, of whose GPUs NVML lost these."""
    devices = tuple(msgspec.structs.replace(gpu, lost=gpu.pci_address in addresses) for gpu in gpus(seen))
    return changed(seen, "gpu", devices=devices)


def judged(seen: Snapshot, rule_id: str, *events: KernelEvent) -> Result:
    return judge_one(with_log(seen, *events), rule_id)


def subjects(seen: Snapshot, rule_id: str, *events: KernelEvent) -> list[str]:
    found = judged(seen, rule_id, *events)
    blamed = [item.subject for item in found.evidence if item.verdict is FAIL]
    assert found.verdict is (FAIL if blamed else PASS)
    assert len(found.evidence) == max(len(blamed), 1)  # one word that all is well, or findings alone
    return blamed
