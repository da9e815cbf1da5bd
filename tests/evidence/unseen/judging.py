"""What is read of a text, and what the rules say of that."""

from __future__ import annotations

from torchtune_sys import engine
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules import CATALOGUE


def seen(text: str) -> Snapshot:
    found = engine.report(text, "report")
    assert found is not None
    return found


def judged(text: str) -> dict[str, Result]:
    return {result.rule.id: result for result in engine.judge(seen(text), CATALOGUE)}
