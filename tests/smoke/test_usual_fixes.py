"""A failure that the smoke test names says what helps."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import torchtune_sys
from smoke.faults.table import FAULTS
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.causes import cause_rows, usual_fix
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import RankEnd
from torchtune_sys.smoke.merge import merged


@functools.lru_cache
def _nodes() -> list[ast.AST]:
    """Return what the smoke test's sources are made of."""
    files = (Path(torchtune_sys.__file__).parent / "smoke").rglob("*.py")
    return [node for file in files for node in ast.walk(ast.parse(file.read_text()))]


def _stated() -> set[str]:
    """Return the causes that stages raise by name, without a word of what helps."""
    calls = (node for node in _nodes() if isinstance(node, ast.Call) and node.args)
    raised = (
        call.args[0] for call in calls if ast.unparse(call.func) == "StageFailed" and len(call.args) + len(call.keywords) < 3
    )
    return {cause.value for cause in raised if isinstance(cause, ast.Constant) and isinstance(cause.value, str) and cause.value}


def test_each_cause_has_what_helps() -> None:
    named = {fault.cause for fault in FAULTS if fault.cause and not fault.wrong} | _stated()
    assert len(named) > 150
    assert [cause for cause in sorted(named) if not usual_fix(cause)] == []


def test_a_cause_has_one_row_and_is_named_by_the_smoke_test() -> None:
    causes = [cause for row in tables.rows("smoke_fixes") for cause in row["causes"].split()]
    assert len(causes) == len(set(causes)) and not set(causes) & set(cause_rows())
    words = {node.value for node in _nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert set(causes) - words == set()


def test_what_a_stage_says_itself_comes_first() -> None:
    def told(cause: str, remedy: str, verdict: Verdict = Verdict.FAIL) -> str:
        end = RankEnd(rank=0, verdict=verdict, seconds=0.1, cause=cause, seen="so", remedy=remedy)
        return merged("stragglers", {0: end}, {}, ()).remedy

    assert told("straggler-held-back", "") == usual_fix("straggler-held-back") != ""
    assert told("straggler-held-back", "ask the one who stops it") == "ask the one who stops it"
    assert told("", "", Verdict.PASS) == "" and told("checkpoint-damaged", "") == cause_rows()["checkpoint-damaged"].fix
