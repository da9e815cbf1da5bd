"""Reports made by hand: one of each verdict, on facts that are all missing."""

from __future__ import annotations

from typing import Any

from torchtune_sys.model.actions import Install, Needs, Safety, Service, Sysctl
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Evidence, Result, Rule, Severity, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.target import AtMost
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.render.report import Report

DENIED = Missing(Why.DENIED, "/proc/secret", "permission denied", "run as root")
LATE = Missing(Why.TIMEOUT, "nvidia-smi", "no answer within 10 s")


def rule(id: str, severity: Severity = Severity.ERROR, title: str = "Something is wrong", **fields: Any) -> Rule:
    return Rule(
        **{"id": id, "severity": severity, "title": title, "judge": lambda s, p: (), "family": "driver", "doc": "", **fields}
    )


def failed(id: str, *evidence: Evidence, severity: Severity = Severity.ERROR, **fields: Any) -> Result:
    found = evidence or (Evidence(subject="it", seen="bad", wanted="good", source="/proc/it"),)
    return Result(rule=rule(id, severity, **fields), verdict=Verdict.FAIL, evidence=found)


def passed(id: str = "all-well", **fields: Any) -> Result:
    return Result(rule=rule(id, **fields), verdict=Verdict.PASS)


def unknown(id: str, missing: Missing, severity: Severity = Severity.ERROR) -> Result:
    return Result(rule=rule(id, severity), verdict=Verdict.UNKNOWN, why_unknown=missing)


def not_applicable(id: str = "no-such-thing") -> Result:
    return Result(rule=rule(id), verdict=Verdict.NA, note="no GPU on this host")


def crashed(id: str = "gone-wrong") -> Result:
    why = Missing(Why.CRASHED, f"rule {id}", 'Traceback (most recent call last):\n  File "x.py"\nValueError: <boom>')
    return Result(rule=rule(id), verdict=Verdict.CRASHED, note="ValueError: <boom>", why_unknown=why)


GPUS = tuple(Evidence(subject=f"GPU {n}", seen="535.104.05", wanted="580.65.06 or newer", source="NVML") for n in (0, 1, 2, 5))
EVERYTHING = (
    failed(
        "driver-too-old",
        *GPUS,
        title="The driver is too old for this torch",
        fix=(
            Install(text="install driver 580.65.06 or newer", needs=Needs.REBOOT, safety=Safety.UNSAFE),
            Service(unit="nvidia-persistenced", state="enabled"),
        ),
    ),
    failed("links-slow", severity=Severity.WARNING, title="A link is slow", family="pci"),
    failed(
        "swappiness-high",
        Evidence(subject="vm.swappiness", seen="60", wanted="10 or less", source="/proc/sys/vm/swappiness"),
        severity=Severity.ADVICE,
        title="The kernel swaps early",
        family="sysctl",
        fix=(Sysctl(key="vm.swappiness", target=AtMost(10)),),
    ),
    unknown("secret-kept", DENIED),
    unknown("smi-hangs", LATE),
    not_applicable(),
    passed(),
    crashed(),
)


def report(*results: Result, **facts: Any) -> Report:
    nothing = Missing(Why.NOT_RECORDED, "nowhere", "made by hand")
    seen = Snapshot(**{**dict.fromkeys(FAMILIES, nothing), "intent": Workload(), "origin": "live", **facts})
    return Report(snapshot=seen, results=results, version="1.2.3", time="2026-02-03T04:05:06Z", epoch_s=1770091506.0)
