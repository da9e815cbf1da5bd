"""docs/coverage.md: what other tools check on one host, and which rule answers it."""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec

INTRODUCTION = """# Coverage

What fifteen other tools check on one host, and the rule that answers it here. Where there is none, the reason stands in its place.
Surveyed: gpud, GCM health checks, imbue's cluster-health, AzNHC and NHC, SuperBench, Google's cluster-health-scanner, NVSentinel,
DCGM's diagnostics, Primus, AWS's and OCI's health checks, the environment collectors (torch, vLLM, accelerate, DeepSpeed), the Python
doctors (env-doctor, cuda-doctor, ai-infradr, brokkr), and tuned with NVIDIA's profiles.
"""


def tables(name: str = "coverage") -> dict[str, Any]:
    """Return ``coverage``: rows and rules; ``evidence``: how the rules did on real reports."""
    text = resources.files(__package__).joinpath(f"data/{name}.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, Any])


def page() -> str:
    found = tables()
    checks = [check for area in found["area"] for check in area["checks"]]
    covered = sum(bool(check["rules"]) for check in checks)
    parts = [INTRODUCTION, f"\n{covered} of {len(checks)} rows have a rule.\n"]
    for area in found["area"]:
        parts.append(f"\n## {area['name']}\n\n| check | rules | remark |\n|---|---|---|\n")
        parts.extend(f"| {check['what']} | {_links(check['rules'])} | {check.get('instead', '')} |\n" for check in area["checks"])
    parts.append("\n## What no other tool has\n\n| what | rules or commands | shown by |\n|---|---|---|\n")
    parts.extend(
        f"| {row['what']} | {_links(row['rules'])}{row.get('how', '')} | {_tests(row)} |\n" for row in found.get("alone", ())
    )
    return "".join([*parts, *_evidence(tables("evidence"))])


def _evidence(found: dict[str, Any]) -> list[str]:
    reports, rules, missed = found["reports"], found["rules"], found["missed"]
    return [
        f"\n## How the rules did on real reports\n\n{reports['all']} public reports whose cause is known, {reports['healthy']} of them "
        f"healthy; {reports['unreadable']} hold nothing of a host (a traceback alone) and are not judged by `check`. *Besides*: the rule fails on a "
        "report with another known cause, which may be true as well. A rule that is not listed failed on none; each rule "
        "has recorded hosts on which it fails, passes and does not know (`tests/hosts`).\n\n"
        "| rule | right | false alarm | besides |\n|---|---|---|---|\n",
        *(f"| {_links([rule])} | {n['right']} | {n['false']} | {n['besides']} |\n" for rule, n in rules.items()),
        f"\nCauses that no rule named in a report that could be read: {', '.join(missed) or 'none'}.\n",
    ]


def _links(rules: list[str]) -> str:
    return ", ".join(f"[{rule}](rules/{rule}.md)" for rule in rules)


def _tests(row: dict[str, Any]) -> str:
    return ", ".join(f"`{test}`" for test in row["tests"]) or row["later"]
