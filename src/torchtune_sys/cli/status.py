"""The exit status of a check."""

from __future__ import annotations

from torchtune_sys.cli.main import FINDINGS, INTERNAL, UNJUDGED
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.render.report import unjudged


def status(results: tuple[Result, ...], *, fail_on: str, strict: bool) -> int:
    """4 if a rule or a probe crashed (the report is then not to be trusted whole), else 1 for findings, else 3 for what
    should have been judged and was not, else 0."""
    if any(result.verdict is Verdict.CRASHED for result in results):
        return INTERNAL
    if fail_on != "never" and any(
        result.verdict is Verdict.FAIL and result.rule.severity.rank <= Severity(fail_on).rank for result in results
    ):
        return FINDINGS
    return UNJUDGED if any(unjudged(result, strict=strict) for result in results) else 0
