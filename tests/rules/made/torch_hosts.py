"""Hosts and words that the boundary tests of torch share."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtune_sys import engine
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import LiveTorch, Torch
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import torch

NOTHING = Missing(Why.ABSENT, "test")
DENIED = Missing(Why.DENIED, "test")
UNTOLD = Missing(Why.NOT_RECORDED, "test")
BY_ID = {rule.id: rule for rule in torch.RULES}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def without(seen: Snapshot, *families: str) -> Snapshot:
    return msgspec.structs.replace(seen, **dict.fromkeys(families, UNTOLD))


def build(seen: Snapshot, **facts: Any) -> Torch:
    assert not isinstance(seen.python, Missing) and not isinstance(seen.python.torch, Missing)
    return msgspec.structs.replace(seen.python.torch, **facts)


def with_gpus(seen: Snapshot, *capabilities: Any) -> Snapshot:
    devices = tuple(Gpu(index=number, name="a GPU", compute_capability=cc) for number, cc in enumerate(capabilities))
    return changed(seen, "gpu", devices=devices)


def asked(**facts: Any) -> LiveTorch:
    """What torch itself says; nothing but ``facts``."""
    told: dict[str, Any] = dict.fromkeys((field.name for field in msgspec.structs.fields(LiveTorch) if field.required), UNTOLD)
    return LiveTorch(**{**told, "version": "2.11.0+cu130", **facts})


def without_gpu(seen: Snapshot) -> Snapshot:
    return changed(changed(seen, "gpu", devices=(), vendor=""), "driver", nvidia_devices=())


def result(seen: Snapshot, rule_id: str) -> Result:
    return engine.judge(seen, (BY_ID[rule_id],))[0]


def verdict(seen: Snapshot, rule_id: str) -> Verdict:
    return result(seen, rule_id).verdict


def verdicts(seen: Snapshot, rule_id: str) -> list[tuple[str, Verdict]]:
    return [(item.subject, item.verdict) for item in result(seen, rule_id).evidence]
