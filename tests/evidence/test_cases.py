"""Real reports with known causes, read where they lie: healthy ones give no error, faulty ones name their cause.

TORCHTUNE_SYS_CASES_DIR names the folder. ``python tests/evidence/test_cases.py`` prints the table.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from torchtune_sys import engine, evidence
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.rules import CATALOGUE

CASES = Path(os.environ.get("TORCHTUNE_SYS_CASES_DIR") or Path(__file__).resolve().parents[3] / "shared" / "cases")
FOLDERS = sorted(path for path in CASES.iterdir() if (path / "case.json").is_file()) if CASES.is_dir() else []


def case(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "case.json").read_text()))


def findings(folder: Path) -> tuple[Result, ...] | None:
    """The failing and crashed rules; None where nothing was recognised."""
    seen = evidence.read((folder / "input.txt").read_text(errors="replace"), folder.name)
    if seen is None:
        return None
    return tuple(result for result in engine.judge(seen, CATALOGUE) if result.verdict in (Verdict.FAIL, Verdict.CRASHED))


def errors(found: tuple[Result, ...]) -> list[str]:
    return [result.rule.id for result in found if result.rule.severity is Severity.ERROR]


HEALTHY = [folder for folder in FOLDERS if case(folder)["cause"] == "none"]
FAULTY = [
    folder
    for folder in FOLDERS
    if case(folder)["cause"] != "none" and {"collect_env", "nvidia-smi", "ulimit"} & set(case(folder)["kind"])  # type: ignore[call-overload]
]


def test_the_reports_are_there() -> None:
    if not FOLDERS:
        pytest.skip(f"no reports in {CASES} (set TORCHTUNE_SYS_CASES_DIR)")
    assert HEALTHY and FAULTY


@pytest.mark.parametrize("folder", HEALTHY, ids=lambda folder: folder.name)
def test_healthy_report_gives_no_error(folder: Path) -> None:
    found = findings(folder)
    assert found is not None, "not recognised"
    assert errors(found) == []


@pytest.mark.parametrize("folder", FAULTY, ids=lambda folder: folder.name)
def test_faulty_report_names_its_cause(folder: Path) -> None:
    found = findings(folder)
    assert found is not None, "not recognised"
    assert case(folder)["cause"] in {result.rule.cause for result in found}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_report_makes_a_rule_crash(folder: Path) -> None:
    assert [result.note for result in findings(folder) or () if result.verdict is Verdict.CRASHED] == []


def table() -> str:
    """One line for each report that was recognised: what it is, what was found."""
    lines = []
    for folder in FOLDERS:
        found = findings(folder)
        if found is None:
            continue
        cause = str(case(folder)["cause"])
        named = cause in {result.rule.cause for result in found}
        good = not errors(found) if cause == "none" else named
        verdict = "right" if good else ("FALSE ALARM" if cause == "none" else "missed")
        lines.append(f"{verdict:12}{folder.name:22}{cause:38}{', '.join(result.rule.id for result in found)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
