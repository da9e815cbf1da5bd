"""What is said of real reports with known causes, one line for each: ``python scripts/judge_reports.py CASES``.

CASES holds one folder per report: ``input.txt``, what was pasted, and ``case.json`` with its ``cause`` (``none``: healthy) and ``kind``
(what was pasted). Exits with 1 where a rule crashed, a healthy report has an error, the kernel's log of any report is accused of something
else than the cause, or the cause of a report that holds a host's facts was missed. Reports are no part of the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from torchtune_sys import engine, evidence
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.rules import CATALOGUE

TELLING = {"collect_env", "nvidia-smi", "ulimit", "dmesg", "journal"}
"""Kinds of text that say so much of a host that its cause must be named."""


class Report(NamedTuple):
    name: str
    cause: str
    kinds: frozenset[str]
    text: str


def read(folder: Path) -> Report:
    case = json.loads((folder / "case.json").read_text())
    return Report(folder.name, case["cause"], frozenset(case["kind"]), (folder / "input.txt").read_text(errors="replace"))


def findings(report: Report) -> list[Result] | None:
    """Return what failed or crashed; None where nothing in the text was recognised."""
    seen = evidence.read(report.text, report.name)
    if seen is None:
        return None
    return [result for result in engine.judge(seen, CATALOGUE) if result.verdict in (Verdict.FAIL, Verdict.CRASHED)]


def outcome(report: Report, found: list[Result] | None) -> tuple[str, bool]:
    """Return what came of one report, and whether that counts as a failure."""
    if found is None:
        return "unreadable", report.cause == "none" or bool(TELLING & report.kinds)
    if any(result.verdict is Verdict.CRASHED for result in found):
        return "CRASHED", True
    if report.cause == "none":
        alarm = any(result.rule.severity is Severity.ERROR for result in found)
        return ("FALSE ALARM", True) if alarm or _of_log(found) else ("right", False)
    if _of_log(found) - {report.cause}:
        return "LOG ACCUSED", True
    if report.cause in {result.rule.cause for result in found}:
        return "right", False
    return "missed", bool(TELLING & report.kinds)


def _of_log(found: list[Result]) -> set[str]:
    """Return the causes that the rules on the kernel's log name."""
    return {each.rule.cause for each in found if each.rule.family == "kernel" and each.rule.severity is not Severity.ADVICE}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    folders = sorted(path.parent for path in parser.parse_args().cases.glob("*/case.json"))
    bad = 0
    for report in map(read, folders):
        found = findings(report)
        word, wrong = outcome(report, found)
        bad += wrong
        named = ", ".join(result.rule.id for result in found or ())
        print(f"{'!' if wrong else ' '} {word:12}{report.name:24}{report.cause:36}{named}")
    print(f"{len(folders)} reports, {bad} of them (!) judged as they must not be")
    return 1 if bad or not folders else 0


if __name__ == "__main__":
    sys.exit(main())
