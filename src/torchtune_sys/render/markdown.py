"""Markdown for an issue or a wiki page, from the template ``report/report.md.j2``."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.model import actions
from torchtune_sys.model.rule import Verdict
from torchtune_sys.render import report_head
from torchtune_sys.render.layout import clean
from torchtune_sys.render.report import Report, failing, findings, fixes, host_name, reasons, summary, why_text
from torchtune_sys.render.templates import environment
from torchtune_sys.render.text import evidence_text, grouped, verdict


def render(report: Report) -> str:
    counts = summary(report.results)
    seen = report.snapshot
    template = environment({"cell": cell, "code": code}).get_template("report/report.md.j2")
    return template.render(
        report=report,
        name=host_name(seen),
        verdict=verdict(report, counts),
        counts=counts,
        failed=sum(counts.findings.values()),
        head={
            "GPU": ", ".join(report_head.gpu_parts(seen)),
            "Host": ", ".join(report_head.host_parts(seen)),
            "Python": ", ".join(report_head.python_parts(seen)),
            "Session": ", ".join(report_head.session_parts(seen)),
        },
        findings=[
            {
                "rule": result.rule,
                "evidence": [evidence_text(item) for item in grouped(failing(result))],
                "fixes": [actions.text(action) for action in fixes(result)],
            }
            for result in findings(report.results)
        ],
        unknown=[
            {"rule": result.rule, "reasons": [(why_text(missing), missing.remedy) for missing in reasons(result)]}
            for result in report.results
            if result.verdict is Verdict.UNKNOWN
        ],
        crashed=[result for result in report.results if result.verdict is Verdict.CRASHED],
    )


def cell(text: str) -> str:
    """Return text that no Markdown reads as markup, in a table's cell or a list's item.

    >>> cell("a|b <img> @joe #1 `x`")
    'a\\\\|b \\\\<img\\\\> \\\\@joe \\\\#1 \\\\`x\\\\`'
    """
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]<>#|~@!&" else sign for sign in clean(text))


def code(text: str) -> str:
    """Return text as inline code, which may hold backticks itself (CommonMark 6.1)."""
    shown = clean(text).replace("|", "\\|")
    fence = fenced((shown,), "`")
    pad = " " if shown[:1] == "`" or shown[-1:] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def fenced(rows: Iterable[str], fence: str = "```") -> str:
    """Return a fence that none of the rows closes."""
    text = "\n".join(rows)
    while fence in text:
        fence += "`"
    return fence
