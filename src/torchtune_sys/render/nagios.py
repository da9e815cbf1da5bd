"""One line and performance data, as monitoring plug-ins speak (Monitoring Plugins Development Guidelines)."""

from __future__ import annotations

from torchtune_sys.model.rule import Severity
from torchtune_sys.render.layout import clean, cut
from torchtune_sys.render.report import Report, can_train, findings, host_name, summary, unjudged
from torchtune_sys.rules.can_train import Device

OK, WARNING, CRITICAL, UNKNOWN = range(4)
_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def render(report: Report, *, strict: bool = False) -> str:
    counts = summary(report.results)
    found = findings(report.results)
    words = "; ".join(result.rule.title for result in found if result.rule.severity is not Severity.ADVICE)
    if not words:
        words = f"{counts.passed} passed, {counts.unknown} could not be checked"
    ability = can_train(report)
    if ability.device is Device.NONE and not ability.by_finding:
        words = f"cannot train: {ability.why}; {words}"
    if report.unjudged_families:
        words += f"; no check applies of {', '.join(report.unjudged_families)}"
    if counts.crashed:
        words += f"; {counts.crashed} crashed (a bug)"
    numbers = " ".join(
        (
            f"errors={counts.findings['error']};;0;0",
            f"warnings={counts.findings['warning']};0;;0",
            f"advice={counts.findings['advice']};;;0",
            f"passed={counts.passed};;;0",
            f"unknown={counts.unknown};;;0",
        )
    )
    return f"{line(exit_code(report, strict=strict), f'{host_name(report.snapshot)}: {words}')} | {numbers}\n"


def line(state: int, text: str) -> str:
    """Return ``TORCHTUNE-SYS OK - …``; the bar would start the performance data."""
    return f"TORCHTUNE-SYS {_NAMES[state]} - {cut(clean(text), 400).replace('|', '/')}"


def exit_code(report: Report, *, strict: bool = False) -> int:
    """Return the exit code: a finding of severity error is critical, then comes what could not be checked, then warnings; advice is well."""
    counts = summary(report.results)
    if counts.findings["error"]:
        return CRITICAL
    if counts.crashed or report.unjudged_families or any(unjudged(result, strict=strict) for result in report.results):
        return UNKNOWN
    return WARNING if counts.findings["warning"] else OK
