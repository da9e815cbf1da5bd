"""Hosts and words that the boundary tests of sysctl share."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtune_sys import engine
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import sysctl, system

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
BY_ID = {rule.id: rule for rule in (*sysctl.RULES, *system.RULES)}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def with_intent(seen: Snapshot, **intent: Any) -> Snapshot:
    return msgspec.structs.replace(seen, intent=Workload(**intent))


def made(value: str, source: str = "/etc/sysctl.d/a.conf:1") -> Assignment:
    return Assignment(value=value, source=source)


def with_keys(seen: Snapshot, keys: dict[str, Any], **also: Any) -> Snapshot:
    """The same host, where these keys run with these values, nothing sets them, and None is a key that the kernel does not have."""
    assert not isinstance(seen.sysctl, Missing)
    bare = {"assignments": (), "systemd": NOTHING, "procps": NOTHING, "tuned": NOTHING, "cmdline": NOTHING, "boot": NOTHING}
    settings = {key: found for key, found in seen.sysctl.settings.items() if key not in keys}
    settings |= {key: Setting(key=key, running=value, **{**bare, **also}) for key, value in keys.items() if value is not None}
    return changed(seen, "sysctl", settings=settings)


def judged(seen: Snapshot, rule_id: str) -> Result:
    return engine.judge(seen, (BY_ID[rule_id],))[0]


def over_tcp(seen: Snapshot, nodes: int | None = 2) -> Snapshot:
    return changed(with_intent(seen, nodes=nodes), "network", rdma=NOTHING)
