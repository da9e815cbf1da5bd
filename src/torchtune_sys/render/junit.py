"""JUnit XML: a test suite per family, a test case per rule. A finding is a failure, a crash an error; what is unknown or
does not apply is skipped, so that nothing unseen is shown as passed.

The elements and their order are those that both common schemas (Jenkins' xUnit plug-in, Ant's windyroad) allow.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.render.layout import clean
from torchtune_sys.render.report import Report, failing, host_name, reasons, told
from torchtune_sys.render.text import evidence_text, grouped


def render(report: Report) -> str:
    families = dict.fromkeys(result.rule.family for result in report.results)
    suites = [
        row
        for place, family in enumerate(families)
        for row in _suite(report, place, family, [result for result in report.results if result.rule.family == family])
    ]
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>", *suites, "</testsuites>"]) + "\n"


def _suite(report: Report, place: int, family: str, results: list[Result]) -> Iterator[str]:
    count = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    name = escape(f"torchtune-sys.{family}")
    yield (
        f'  <testsuite package="torchtune-sys" id="{place}" name="{name}" timestamp="{escape(report.time.rstrip("Z"))}" '
        f'hostname="{escape(host_name(report.snapshot))}" tests="{len(results)}" failures="{count[Verdict.FAIL]}" '
        f'errors="{count[Verdict.CRASHED]}" skipped="{count[Verdict.UNKNOWN] + count[Verdict.NA]}" time="0">'
    )
    yield f'    <properties><property name="version" value="{escape(report.version)}"/></properties>'
    for result in results:
        inside = _inside(result)
        opening = f'    <testcase name="{escape(result.rule.id)}" classname="{name}" time="0"'
        yield f"{opening}>{inside}</testcase>" if inside else f"{opening}/>"
    yield "    <system-out></system-out>"
    yield "    <system-err></system-err>"
    yield "  </testsuite>"


def _inside(result: Result) -> str:
    match result.verdict:
        case Verdict.PASS:
            return ""
        case Verdict.NA:
            return f'<skipped message="{escape("not applicable: " + result.note)}"/>'
        case Verdict.UNKNOWN:
            return f'<skipped message="{escape("unknown: " + "; ".join(map(told, reasons(result))))}"/>'
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
    """Text for an attribute or an element. XML 1.0 has no way to write most control characters: they are shown as escapes."""
    shown = clean(text)
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        shown = shown.replace(sign, entity)
    return shown
