"""The page of what other tools check names rules and tests that exist, and leaves no row without an answer."""

from __future__ import annotations

from pathlib import Path

from torchtune_sys.gen import coverage
from torchtune_sys.rules import by_id

REPO = Path(__file__).resolve().parent.parent
TABLES = coverage.tables()
CHECKS = [check for area in TABLES["area"] for check in area["checks"]]


def test_rules_exist() -> None:
    unknown = {row["what"]: set(row["rules"]) - by_id().keys() for row in [*CHECKS, *TABLES["alone"]]}
    assert not {what: rules for what, rules in unknown.items() if rules}


def test_each_row_has_a_rule_or_a_reason() -> None:
    assert not [check["what"] for check in CHECKS if not (check["rules"] or check.get("instead"))]


def test_what_nobody_else_has_is_shown_by_a_test() -> None:
    assert not [row["what"] for row in TABLES["alone"] if not (row["tests"] or row.get("later"))]
    named = [test.split("::") for row in TABLES["alone"] for test in row["tests"]]
    assert not [(file, name) for file, name in named if f"def {name}(" not in (REPO / file).read_text()]


def test_twelve_rows_are_alone() -> None:
    assert len(TABLES["alone"]) == 12
