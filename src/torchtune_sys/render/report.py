"""The common input of every report format: one host's results, with time and version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from torchtune_sys.model.actions import Action, Advice, EnvironmentVariable, Install
from torchtune_sys.model.rule import Evidence, Result, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.render.node_set import host_word

if TYPE_CHECKING:
    from torchtune_sys.rules.can_train import Ability


class Report(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: Snapshot
    results: tuple[Result, ...]
    """In catalogue order."""
    version: str
    time: str
    """RFC 3339, UTC, whole seconds."""
    epoch_s: float
    """The same moment in seconds since 1970."""
    proof: str = ""
    """What is to be said of the last smoke test that passed; "" where there was none."""
    unjudged_families: tuple[str, ...] = ()
    """Families that were to be judged by all means (``--strict``), and of which no rule applies here."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    findings: dict[str, int]
    """By severity, the worst first."""
    passed: int
    unknown: int
    na: int
    crashed: int


def can_train(report: Report) -> Ability:
    """Return what this host can train on, as the facts and the findings say."""
    from torchtune_sys.rules.can_train import ability  # with all rules, of which the smoke test's report has no need

    return ability(report.snapshot, report.results)


def unexplained(report: Report) -> tuple[str, ...]:
    """Return the lines in which a program of the report says that it failed, where no finding stands for a failure."""
    grave = any(r.verdict is Verdict.FAIL and r.rule.severity is not Severity.ADVICE for r in report.results)
    return () if grave else report.snapshot.failures


def summary(results: tuple[Result, ...]) -> Summary:
    verdicts = [result.verdict for result in results]
    severities = [result.rule.severity for result in results if result.verdict is Verdict.FAIL]
    return Summary(
        findings={level.value: severities.count(level) for level in Severity},
        passed=verdicts.count(Verdict.PASS),
        unknown=verdicts.count(Verdict.UNKNOWN),
        na=verdicts.count(Verdict.NA),
        crashed=verdicts.count(Verdict.CRASHED),
    )


def findings(results: tuple[Result, ...]) -> list[Result]:
    """Return the failed results, the worst severity first, else in catalogue order."""
    return sorted((result for result in results if result.verdict is Verdict.FAIL), key=lambda result: result.rule.severity.rank)


def failing(result: Result) -> tuple[Evidence, ...]:
    return tuple(item for item in result.evidence if item.verdict is Verdict.FAIL)


_WORDS = (Advice, EnvironmentVariable, Install)


def fixes(result: Result) -> tuple[Action, ...]:
    """Return the rule's fix; in its place what its subjects have of their own, where a person does that."""
    own = tuple(dict.fromkeys(action for item in failing(result) for action in item.fix))
    return own if own and all(isinstance(action, _WORDS) for action in own) else result.rule.fix


_LOOK_FAILED = frozenset({Why.FAILED, Why.TIMEOUT, Why.UNPARSED, Why.CRASHED})
"""Reasons that lie in the look itself; a lack of privilege, tool or record is the person's to mend."""


def unjudged(result: Result, *, strict: bool) -> bool:
    """Return whether an applicable rule of severity error got no verdict because the look failed (``strict``: for any reason)."""
    if result.verdict is not Verdict.UNKNOWN or result.rule.severity is not Severity.ERROR:
        return False
    return strict or any(missing.why in _LOOK_FAILED for missing in reasons(result))


def reasons(result: Result) -> tuple[Missing, ...]:
    """Return everything that could not be seen and kept this rule from judging, without repetition."""
    found = [item.why for item in result.evidence if item.why is not None]
    if result.why_unknown is not None:
        found.insert(0, result.why_unknown)
    return tuple(dict.fromkeys(found))


def host_name(seen: Snapshot) -> str:
    """Return the host's name for a headline, as ``host_word`` writes it; "this host" where it is not known."""
    if isinstance(seen.system, Missing) or isinstance(seen.system.hostname, Missing):
        return "this host" if seen.origin == "live" else "the given host"
    return host_word(seen.system.hostname)


def why_text(missing: Missing) -> str:
    """Return in one line where a fact was looked for and what was seen; of a traceback the last line."""
    if missing.why is Why.CRASHED:
        return f"{missing.source} crashed, which is a bug: {missing.detail.strip().rpartition(chr(10))[2]}"
    return str(missing)
