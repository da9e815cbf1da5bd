"""The verdict of each rule alone on its own overlays: for mutation testing of ``rules/`` (``scripts/mutate_rules.py``) only.

``test_catalogue.py`` asserts the same of the whole catalogue, so that the name keeps pytest from collecting this file by itself.
"""

from __future__ import annotations

from functools import cache

import pytest

from conftest import HOSTS, load
from torchtune_sys import engine
from torchtune_sys.model.rule import Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules import CATALOGUE, by_id

RULES = by_id()
CASES = sorted(path.stem for path in HOSTS.glob("*.*.json") if path.stem.split(".")[0] in RULES)


@cache
def seen(name: str) -> Snapshot:
    return load(name)


@pytest.mark.parametrize("name", CASES)
def test_overlay(name: str) -> None:
    rule_id, verdict = name.split(".")[:2]
    (result,) = engine.judge(seen(name), [RULES[rule_id]])
    assert result.verdict.value == verdict, result


@pytest.mark.parametrize("rule", CATALOGUE, ids=lambda rule: rule.id)
def test_healthy(rule: Rule) -> None:
    (result,) = engine.judge(seen("healthy"), [rule])
    assert result.verdict in (Verdict.PASS, Verdict.NA), result
