"""GitHub Actions workflow commands: one annotation per finding, crash, or check that could not look."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import text as action_text
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.render.layout import clean
from torchtune_sys.render.report import Report, failing, findings, fixes, host_name, reasons, summary, unjudged, why_text
from torchtune_sys.render.text import evidence_text, grouped, verdict

_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def render(report: Report) -> str:
    rows = [_finding(result) for result in findings(report.results)]
    rows.extend(_others(report.results))
    # A line of the log, not a command: it must not begin with "::".
    words = f"torchtune-sys: {host_name(report.snapshot)}: {verdict(report, summary(report.results))}"
    return "\n".join([*rows, clean(words)]) + "\n"


def _finding(result: Result) -> str:
    lines = [evidence_text(item) for item in grouped(failing(result))]
    lines.extend(f"fix: {action_text(action)}" for action in fixes(result)[:1])
    return command(_LEVEL[result.rule.severity], f"{result.rule.id}: {result.rule.title}", "\n".join(lines))


def _others(results: tuple[Result, ...]) -> Iterator[str]:
    for result in results:
        if result.verdict is Verdict.CRASHED:
            yield command("error", f"{result.rule.id} crashed (a bug)", result.note)
        elif unjudged(result, strict=False):
            yield command("warning", f"{result.rule.id} could not be checked", "\n".join(map(why_text, reasons(result))))


def command(level: str, title: str, message: str) -> str:
    """Return ``::error title=…::…`` with the escapes that the runner undoes (actions/toolkit, packages/core/src/command.ts)."""
    body = "\n".join(clean(line) for line in message.split("\n")) or " "
    return f"::{level} title={_property(clean(title))}::{_data(body)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
