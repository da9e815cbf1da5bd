"""Each attack of docs/attacks.md that got in names a test that exists, so that no claim on the page outlives its test."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
COLUMNS = 6


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the tables that have a column of tests, without their heads."""
    found, is_tested = [], False
    for line in text.splitlines():
        if line.startswith("| what |"):
            is_tested = line.endswith("| test |")
        elif not line.startswith("|"):
            is_tested = False
        elif line.startswith("| ") and is_tested:
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def named(cell: str, above: str = "") -> list[tuple[str, str]]:
    """Return file and function of each test of a cell: `file::name`, or `file`: `name`, `name`; without a file it is that of the row ``above``."""
    found: list[tuple[str, str]] = []
    for word in re.findall(r"`([^`]+)`", cell):
        file, _, name = word.partition("::")
        if file.startswith("tests/"):
            above = file
            found.append((file, name))
        elif above and re.fullmatch(r"test_\w+", word):
            found.append((above, word))
    return found


def faults(text: str) -> list[str]:
    """Return what is wrong with the rows."""
    found, above = [], ""
    for row in rows(text):
        if len(row) != COLUMNS or not all(row):
            found.append(f"not {COLUMNS} cells: {row}")
            continue
        tests = named(row[-1], above)
        above = tests[-1][0] if tests else above
        found += [] if tests else [f"no test: {row}"]
        for file, name in tests:
            path = REPO / file
            if not path.is_file() or (name and f"def {name}(" not in path.read_text()):
                found.append(f"no such test: {file}::{name}")
    return found


def test_each_attack_on_the_page_has_a_test_that_exists() -> None:
    text = (REPO / "docs/attacks.md").read_text()
    assert faults(text) == [] and len(rows(text)) > 170


def test_a_row_without_its_test_is_seen() -> None:
    head = "| what | by whom | how it was tried | before | after | test |\n|---|---|---|---|---|---|\n"
    own = "`tests/test_attacks.py::test_a_row_without_its_test_is_seen`"
    assert faults(f"{head}| a | b | c | d | e | {own} |\n") == []
    assert faults(f"{head}| a | b | c | d | e | `tests/test_attacks.py::test_gone` |\n")
    assert faults(f"{head}| a | b | c | d | e | later |\n")
    assert faults(f"{head}| a | b | c | d | {own} |\n")
    assert not rows("| what | by whom | what came of it |\n|---|---|---|\n| a | b | c |\n")
