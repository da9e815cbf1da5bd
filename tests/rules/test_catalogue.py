"""Holds for every rule: it can fail, it can pass, it can say unknown, and nothing else moves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import pytest

from conftest import HOSTS, judge, load
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.rules import CATALOGUE

OVERLAYS = sorted(path.stem for path in HOSTS.glob("*.*.json"))


def overlays(rule: Rule, verdict: str) -> list[str]:
    return [name for name in OVERLAYS if re.fullmatch(rf"{re.escape(rule.id)}\.{verdict}(\..+)?", name)]


@cache
def of_the_healthy_host() -> Mapping[str, Result]:
    return judge(load("healthy"))


def test_healthy_host_has_no_finding_and_nothing_unknown() -> None:
    bad = {
        rule_id: result for rule_id, result in of_the_healthy_host().items() if result.verdict not in (Verdict.PASS, Verdict.NA)
    }
    assert not bad


@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.id)
def test_each_rule_has_a_failing_a_passing_and_an_unknown_case(rule: Rule) -> None:
    passes = of_the_healthy_host()[rule.id].verdict is Verdict.PASS or overlays(rule, "pass")
    assert overlays(rule, "fail"), f"write tests/hosts/{rule.id}.fail.json"
    assert passes, f"the healthy host gives na: write tests/hosts/{rule.id}.pass.json"
    assert overlays(rule, "unknown"), f"write tests/hosts/{rule.id}.unknown.json"


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_moves_exactly_its_rule(name: str) -> None:
    rule_id, verdict = name.split(".")[:2]
    also = set(load_recording(str(HOSTS / f"{name}.json")).get("also", ()))
    results = judge(load(name))
    assert rule_id in results, f"{name}.json stands for no rule"
    assert results[rule_id].verdict.value == verdict, results[rule_id]
    crashed = {other: result.note for other, result in results.items() if result.verdict is Verdict.CRASHED}
    assert not crashed
    failed = {other for other, result in results.items() if result.verdict is Verdict.FAIL} - {rule_id}
    assert failed <= also, f"also failed: {sorted(failed - also)}"


@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.id)
def test_rule_is_documented(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
    for heading in ("Why it matters", "When to leave it", "References"):
        assert f"{heading}\n" in rule.doc, f"{rule.id}: docstring lacks the section {heading!r}"


def test_rule_ids_are_unique() -> None:
    ids = [rule.id for rule in CATALOGUE]
    assert len(ids) == len(set(ids))
