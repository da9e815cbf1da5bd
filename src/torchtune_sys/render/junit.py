"""JUnit XML: a test suite per family, a test case per rule. A finding is a failure, a crash an error; what is unknown or
does not apply is skipped, so that nothing unseen is shown as passed.

The elements and their order are those that both common schemas (Jenkins' xUnit plug-in, Ant's windyroad) allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.render.layout import clean
from torchtune_sys.render.report import Report, failing, host_name, reasons, why_text
from torchtune_sys.render.text import evidence_text, grouped


def render(report: Report) -> str:
    families = dict.fromkeys(result.rule.family for result in report.results)
    suites = [
        Suite(
            name=f"torchtune-sys.{family}",
            host=host_name(report.snapshot),
            time=report.time,
            version=report.version,
            cases=tuple(
                Case(name=result.rule.id, verdict=result.verdict, inside=_inside(result))
                for result in report.results
                if result.rule.family == family
            ),
        )
        for family in families
    ]
    return document(suites)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One test case."""

    name: str
    verdict: Verdict
    seconds: str = "0"
    inside: str
    """Its element: failure, error or skipped; "" where it passed."""


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """One test suite."""

    name: str
    host: str
    time: str
    version: str
    seconds: str = "0"
    cases: tuple[Case, ...]
    said: str = ""
    """What is told of all cases together."""


def document(suites: Iterable[Suite]) -> str:
    rows = [row for place, suite in enumerate(suites) for row in _rows(place, suite)]
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>", *rows, "</testsuites>"]) + "\n"


def _rows(place: int, suite: Suite) -> Iterator[str]:
    count = {verdict: sum(case.verdict is verdict for case in suite.cases) for verdict in Verdict}
    name = escape(suite.name)
    yield (
        f'  <testsuite package="torchtune-sys" id="{place}" name="{name}" timestamp="{escape(suite.time.rstrip("Z"))}" '
        f'hostname="{escape(suite.host)}" tests="{len(suite.cases)}" failures="{count[Verdict.FAIL]}" '
        f'errors="{count[Verdict.CRASHED]}" skipped="{count[Verdict.UNKNOWN] + count[Verdict.NA]}" time="{suite.seconds}">'
    )
    yield f'    <properties><property name="version" value="{escape(suite.version)}"/></properties>'
    for case in suite.cases:
        opening = f'    <testcase name="{escape(case.name)}" classname="{name}" time="{case.seconds}"'
        yield f"{opening}>{case.inside}</testcase>" if case.inside else f"{opening}/>"
    yield f"    <system-out>{escape(suite.said)}</system-out>"
    yield "    <system-err></system-err>"
    yield "  </testsuite>"


def _inside(result: Result) -> str:
    match result.verdict:
        case Verdict.PASS:
            return ""
        case Verdict.NA:
            return f'<skipped message="{escape("not applicable: " + result.note)}"/>'
        case Verdict.UNKNOWN:
            return f'<skipped message="{escape("unknown: " + "; ".join(map(why_text, reasons(result))))}"/>'
        case Verdict.CRASHED:
            trace = result.why_unknown.detail if result.why_unknown is not None else ""
            return f'<error type="crash" message="{escape(result.note)}">{_lines(trace)}</error>'
        case Verdict.FAIL:
            shown = "\n".join(clean(evidence_text(item)) for item in grouped(failing(result)))
            kind = result.rule.severity.value
            return f'<failure type="{kind}" message="{escape(result.rule.title)}">{_lines(shown)}</failure>'


def _lines(text: str) -> str:
    return "\n".join(escape(line) for line in text.split("\n"))


def escape(text: str) -> str:
    """Return text for an attribute or an element. XML 1.0 has no way to write most control characters: they are shown as escapes. What
    Jenkins and GitLab take for a file to attach (``[[ATTACHMENT|PATH]]``) is none of a report's words.

    >>> escape("[[ATTACHMENT|/etc/passwd]] <a>")
    '[[ATTACHMENT |/etc/passwd]] &lt;a&gt;'
    """
    shown = clean(text).replace("[[ATTACHMENT|", "[[ATTACHMENT |")
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        shown = shown.replace(sign, entity)
    return shown
