"""The JSON documents. Within ``/1`` keys may be added; none changes its meaning."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from torchtune_sys import __version__
from torchtune_sys.model import actions, codec
from torchtune_sys.model.job import JobVariable
from torchtune_sys.model.placement import Placement
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.rule import Evidence, Result, Rule, Verdict
from torchtune_sys.model.run import RunReport
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.render.doc_pages import cause_page, rule_page
from torchtune_sys.render.report import Report, can_train, fixes, summary, unexplained

if TYPE_CHECKING:
    from torchtune_sys.knowledge.causes import CauseRow
    from torchtune_sys.model.comparison import Comparison
    from torchtune_sys.model.diagnosis import Diagnosis
    from torchtune_sys.model.image import Image
    from torchtune_sys.model.install import Installation
    from torchtune_sys.model.preflight import Preflight
    from torchtune_sys.model.smoke import SmokeReport

REPORT = "torchtune-sys/report/1"
REPORT_BRIEF = "torchtune-sys/report-brief/1"
SNAPSHOT = "torchtune-sys/snapshot/1"
RULES = "torchtune-sys/rules/1"
PLAN = "torchtune-sys/plan/1"
ENVIRONMENT = "torchtune-sys/environment/1"
PLACEMENT = "torchtune-sys/placement/1"
HISTORY = "torchtune-sys/history/1"
RUN = "torchtune-sys/run/1"
SMOKE = "torchtune-sys/smoke/1"
INSTALL = "torchtune-sys/install/1"
IMAGE = "torchtune-sys/image/1"
PREFLIGHT = "torchtune-sys/preflight/1"
COMPARE = "torchtune-sys/compare/1"
FACTS = "torchtune-sys/facts/1"
DIAGNOSIS = "torchtune-sys/diagnosis/1"


def smoke(value: SmokeReport) -> str:
    """Return the report as it is."""
    return codec.dumps({"schema": SMOKE, **msgspec.to_builtins(value)})


def preflight(value: Preflight) -> str:
    """Return the verdict as it is, for one node or for several."""
    return codec.dumps({"schema": PREFLIGHT, **msgspec.to_builtins(value)})


def diagnosis(value: Diagnosis) -> str:
    """Return the causes as they are."""
    return codec.dumps({"schema": DIAGNOSIS, "tool": {"version": __version__}, **msgspec.to_builtins(value)})


def diagnosis_line(value: Diagnosis, node: str = "", *, facts: bool = True) -> str:
    """Return the same in one line, for bundles and for ``--merge``; ``node``: whose it is."""
    document = msgspec.to_builtins(value if facts else msgspec.structs.replace(value, facts={}))
    return codec.line({"schema": DIAGNOSIS, "tool": {"version": __version__}, "node": node, **document})


def comparison(value: Comparison) -> str:
    """Return the differences as they are."""
    return codec.dumps({"schema": COMPARE, "tool": {"version": __version__}, **msgspec.to_builtins(value)})


def render(value: Report) -> str:
    return codec.dumps({"schema": REPORT, **_head(value), "results": [_result(result) for result in value.results]})


BRIEF_BYTES = 20_000
_IN_FULL = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.CRASHED)
_CUTS = ((10_000, 100_000), (8, 240), (2, 120), (1, 60), (1, 0), (0, 0))
"""Subjects of one rule and characters of one text: of 200 disks that are alike the first ones tell. Last, what could not be checked is a list of ids."""


def report_brief(value: Report) -> str:
    """Return the report as ten thousand nodes send it, on one line: what failed, crashed or could not be seen in full, of the rest the ids.

    Where that is more than BRIEF_BYTES, texts and subjects are cut until it is not, and "cut" says so.
    """
    text = ""
    for number, (subjects, length) in enumerate(_CUTS):
        full = _IN_FULL if subjects else (Verdict.FAIL, Verdict.CRASHED)
        found = [_in_brief(item, subjects, length) for item in value.results if item.verdict in full]
        ids = {} if subjects else {"unknown": _ids(value, Verdict.UNKNOWN)}
        text = codec.line({**_brief_head(value, length), "cut": number > 0, "results": found, **ids})
        if len(text.encode()) <= BRIEF_BYTES:
            break
    return text


def _brief_head(value: Report, length: int) -> dict[str, Any]:
    head = _head(value)
    host = {"name": head["host"]["name"], "origin": value.snapshot.origin, "python": head["host"]["python"]}
    ids = {verdict.value: _ids(value, verdict) for verdict in (Verdict.PASS, Verdict.NA)}
    return {"schema": REPORT_BRIEF, **_cut(head, max(length, 60)), "host": host, **ids}


def _ids(value: Report, verdict: Verdict) -> list[str]:
    return [item.rule.id for item in value.results if item.verdict is verdict]


def _in_brief(item: Result, subjects: int, length: int) -> dict[str, Any]:
    """Without what ``rules`` tells of the rule, and of many subjects the first that have its verdict."""
    document: dict[str, Any] = {"rule": item.rule.id, "verdict": item.verdict, "severity": item.rule.severity}
    if not length:
        return document
    same = [evidence for evidence in item.evidence if evidence.verdict is item.verdict]
    more = {
        "cause": item.rule.cause,
        "title": item.rule.title,
        "evidence": [_evidence(evidence) for evidence in same[:subjects]],
        "more_evidence": max(len(same) - subjects, 0),
        "why_unknown": None if item.why_unknown is None else _why(item.why_unknown),
        "fix": [actions.text(action) for action in fixes(item)] if item.verdict is Verdict.FAIL else [],
        "note": item.note,
    }
    return document | {name: _cut(part, length) for name, part in more.items() if part}


def _cut(part: Any, length: int) -> Any:
    """Without what says nothing, and each text in at most so many characters."""
    if isinstance(part, dict):
        return {name: _cut(inner, length) for name, inner in part.items() if inner not in (None, "")}
    if isinstance(part, list):
        return [_cut(inner, length) for inner in part]
    if isinstance(part, str) and not isinstance(part, Enum) and len(part) > length:
        return part[: length - 3] + "..."
    return part


def _head(value: Report) -> dict[str, Any]:
    counts = summary(value.results)
    return {
        "tool": {"version": value.version},
        "time": value.time,
        "host": _host(value.snapshot),
        "summary": {
            "findings": counts.findings,
            "pass": counts.passed,
            "unknown": counts.unknown,
            "na": counts.na,
            "crashed": counts.crashed,
            "can_train": can_train(value).device,
        },
        **({"unexplained": list(unexplained(value))} if unexplained(value) else {}),
        **({"proof": value.proof} if value.proof else {}),
    }


def snapshot(seen: Snapshot, *, version: str, time: str) -> str:
    return codec.dumps(
        {
            "schema": SNAPSHOT,
            "tool": {"version": version},
            "time": time,
            "origin": seen.origin,
            "intent": seen.intent,
            "facts": {family: getattr(seen, family) for family in FAMILIES},
        }
    )


def plan(made: Plan) -> str:
    return codec.dumps({"schema": PLAN, "tool": {"version": __version__}, "plan": made})


def history(runs: list[dict[str, object]]) -> str:
    return codec.dumps({"schema": HISTORY, "tool": {"version": __version__}, "runs": runs})


def run(value: RunReport) -> str:
    return codec.dumps({"schema": RUN, "tool": {"version": __version__}, **msgspec.structs.asdict(value)})


def install(value: Installation) -> str:
    return codec.dumps({"schema": INSTALL, "tool": {"version": __version__}, "install": value})


def image(value: Image) -> str:
    return codec.dumps({"schema": IMAGE, "tool": {"version": __version__}, "image": value})


def placement(value: Placement) -> str:
    return codec.dumps({"schema": PLACEMENT, "tool": {"version": __version__}, "seats": value.seats, "notes": value.notes})


def environment(variables: tuple[JobVariable, ...]) -> str:
    return codec.dumps({"schema": ENVIRONMENT, "tool": {"version": __version__}, "variables": variables})


def rules(chosen: tuple[Rule, ...], causes: tuple[CauseRow, ...] = ()) -> str:
    found = [
        {"cause": row.cause, "title": row.title, "fix": row.fix, "confirm": row.confirm, "page": cause_page(row.cause)}
        for row in causes
    ]
    named: dict[str, Any] = {"cause": found[0]} if len(found) == 1 else {"causes": found} if found else {}
    return codec.dumps({"schema": RULES, "rules": [rule(item) for item in chosen], **named})


def rule(item: Rule) -> dict[str, Any]:
    return {
        "rule": item.id,
        "family": item.family,
        "cause": item.cause,
        "severity": item.severity,
        "status": item.status,
        "title": item.title,
        "page": rule_page(item.id),
        "doc": item.doc,
        "params": [{"name": param.name, "default": param.default, "doc": param.doc} for param in item.params],
        "fix": [_fix(action) for action in item.fix],
    }


def _host(seen: Snapshot) -> dict[str, Any]:
    system, session, python = seen.system, seen.session, seen.python
    return {
        "name": system if isinstance(system, Missing) else system.hostname,
        "origin": seen.origin,
        "session": session
        if isinstance(session, Missing)
        else {
            "user": session.user,
            "uid": session.uid,
            "sudo_user": session.sudo_user,
            "virtual_env": session.virtual_env,
            "cwd": session.cwd,
            "limits": seen.limits if isinstance(seen.limits, Missing) else seen.limits.limits,
        },
        "python": python
        if isinstance(python, Missing)
        else {
            "executable": python.executable,
            "version": python.version,
            "torch": python.torch if isinstance(python.torch, Missing) else python.torch.version,
            "judged_as": python.judged_as,
            "judged_without": python.judged_without,
        },
        "intent": seen.intent,
    }


def _result(item: Result) -> dict[str, Any]:
    return {
        "rule": item.rule.id,
        "family": item.rule.family,
        "cause": item.rule.cause,
        "verdict": item.verdict,
        "severity": item.rule.severity,
        "title": item.rule.title,
        "page": rule_page(item.rule.id),
        "evidence": [_evidence(found) for found in item.evidence],
        "why_unknown": None if item.why_unknown is None else _why(item.why_unknown),
        "fix": [_fix(action) for action in fixes(item)],
        "note": item.note,
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "subject": item.subject,
        "verdict": item.verdict,
        "seen": item.seen,
        "wanted": item.wanted,
        "source": item.source,
        "why_unknown": None if item.why is None else _why(item.why),
    }


def _why(missing: Missing) -> dict[str, str]:
    return {"$missing": missing.why.value, "source": missing.source, "detail": missing.detail, "remedy": missing.remedy}


def _fix(action: actions.Action) -> dict[str, Any]:
    return {
        "action": actions.kind(action),
        "text": actions.text(action),
        "safety": action.safety,
        "needs": action.needs,
    }
