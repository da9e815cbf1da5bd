"""The exit status of a check."""

from __future__ import annotations

from torchtune_sys.cli.main import FINDINGS, INTERNAL, UNJUDGED
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.render.report import unjudged


def status(
    results: tuple[Result, ...],
    *,
    fail_on: str,
    strict: bool,
    unjudged_families: tuple[str, ...] = (),
    unexplained: tuple[str, ...] = (),
) -> int:
    """Return the exit status: 4 if a rule or a probe crashed (the report is then not to be trusted whole), else 1 for findings, else 3 for what
    should have been judged and was not, else 0."""
    if any(result.verdict is Verdict.CRASHED for result in results):
        return INTERNAL
    if fail_on != "never" and any(
        result.verdict is Verdict.FAIL and result.rule.severity.rank <= Severity(fail_on).rank for result in results
    ):
        return FINDINGS
    return UNJUDGED if unjudged_families or unexplained or any(unjudged(result, strict=strict) for result in results) else 0


def missed(seen: Snapshot, *whys: Why) -> list[str]:
    """Return the families that could not be read at all, for one of these reasons."""
    facts = {family: getattr(seen, family) for family in FAMILIES}
    return [family for family, fact in facts.items() if isinstance(fact, Missing) and fact.why in whys]


def status_of_look(seen: Snapshot) -> int:
    """Return the exit status: 4 if a probe crashed, 3 if one did not end in time, else 0."""
    if missed(seen, Why.CRASHED):
        return INTERNAL
    return UNJUDGED if missed(seen, Why.TIMEOUT) else 0
