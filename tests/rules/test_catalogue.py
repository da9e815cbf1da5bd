"""Holds for every rule: it can fail, it can pass, it can say unknown, and nothing else moves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import pytest

from conftest import HOSTS, judge, load, recording
from torchtune_sys.formats.sysctl_keys import KEYS
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.knowledge.kernel_defaults import default
from torchtune_sys.model.actions import Sysctl
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.target import AtLeast
from torchtune_sys.render.explain import paragraphs
from torchtune_sys.rules import CATALOGUE

ONE_OF_MANY = re.compile(r"(?<![\w.,:/-])1 (?:more |other )?(?!GiB|MiB|KiB|was |is |has |as |less |does )[a-z]{2,20}s\b(?! of)")
OVERLAYS = sorted(path.stem for path in HOSTS.glob("*.*.json"))


def overlays(rule: Rule, verdict: str) -> list[str]:
    return [name for name in OVERLAYS if name.split(".")[:2] == [rule.id, verdict]]


@cache
def of_the_healthy_host() -> Mapping[str, Result]:
    return judge(load("healthy"))


def said(result: Result) -> str:
    """Return a rule's verdict with what it says of it, on one line."""
    why = [result.note or str(result.why_unknown or ""), *(f"{item.subject}: {item.seen}" for item in result.evidence)]
    return f"{result.verdict.value} ({'; '.join(filter(None, why)) or 'nothing yielded'})"


# The tests of one rule stand in the order in which a new rule is made: what it says, what it reads, its hosts.
@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.id)
def test_rule_is_documented(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
    for heading in ("Why it matters", "When to leave it", "References"):
        assert f"{heading}\n" in rule.doc, f"{rule.id}: docstring lacks the section {heading!r}"
    for place, text in (("title", rule.title), ("docstring", rule.doc), ("fix", str(rule.fix))):
        assert "TODO" not in text, f"{rule.id}: its {place} still says TODO"
    for reference in dict(paragraphs(rule.doc))["References"]:
        whole = reference.count("(") == reference.count(")") and reference.count('"') % 2 == 0
        assert whole, f"{rule.id}: a reference that goes on in the next line is indented deeper there: {reference}"


SETTINGS = [(rule, action) for rule in CATALOGUE for action in rule.fix if isinstance(action, Sysctl)]


@pytest.mark.parametrize(("rule", "action"), SETTINGS, ids=lambda value: getattr(value, "id", None) or value.key)
def test_the_kernel_setting_that_a_rule_changes_is_read(rule: Rule, action: Sysctl) -> None:
    key, path = action.key, action.key.replace(".", "/")
    if rule.family == "sysctl":
        assert path in KEYS, f"no probe reads {key}, so {rule.id} is na everywhere: add {path} to KEYS in formats/sysctl_keys.py"
        healthy = load_recording(str(HOSTS / "healthy.json"))["files"]
        assert f"/proc/sys/{path}" in healthy, f"write a healthy host's /proc/sys/{path} into tests/hosts/base-sysctl.json"
    known = not isinstance(action.target, AtLeast) or default(key, "6.8.0-45-generic") is not None
    assert known, (
        f"write {key} into knowledge/data/kernel_defaults.csv: a wish for at least so much never ends below the kernel's own"
    )


def test_healthy_host_has_no_finding_and_nothing_unknown() -> None:
    bad = {
        rule_id: result for rule_id, result in of_the_healthy_host().items() if result.verdict not in (Verdict.PASS, Verdict.NA)
    }
    assert not bad


@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.id)
def test_each_rule_has_a_failing_a_passing_and_an_unknown_case(rule: Rule) -> None:
    healthy = of_the_healthy_host()[rule.id]
    assert healthy.verdict is not Verdict.CRASHED, f"on the healthy host {rule.id} raises {healthy.note}: {healthy.why_unknown}"
    passes = healthy.verdict is Verdict.PASS or overlays(rule, "pass")
    assert overlays(rule, "fail"), f"write tests/hosts/{rule.id}.fail.json"
    assert passes, f"the healthy host gives {said(healthy)}: where that is right, write tests/hosts/{rule.id}.pass.json"
    assert overlays(rule, "unknown"), f"write tests/hosts/{rule.id}.unknown.json"


@pytest.mark.sampled(200)
@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_moves_exactly_its_rule(name: str) -> None:
    rule_id, verdict = name.split(".")[:2]
    also = set(recording(name).get("also", ()))
    results = judge(load(name))
    assert rule_id in results, f"{name}.json stands for no rule"
    result = results[rule_id]
    assert result.verdict.value == verdict, f"{name}.json is to make the rule {verdict}; it gives {said(result)}"
    crashed = {other: result.note for other, result in results.items() if result.verdict is Verdict.CRASHED}
    assert not crashed
    failed = {other for other, result in results.items() if result.verdict is Verdict.FAIL} - {rule_id}
    assert failed <= also, f"also failed: {sorted(failed - also)}"
    words = " ".join(f"{item.seen}; {item.wanted}" for item in result.evidence if item.verdict is Verdict.FAIL)
    assert not ONE_OF_MANY.search(words), f"one thing in the plural: {ONE_OF_MANY.search(words)}: use counted() of model/numbers"


def test_rule_ids_are_unique() -> None:
    ids = [rule.id for rule in CATALOGUE]
    assert len(ids) == len(set(ids))
