"""The committed documents say what the catalogue and the commands say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchtune_sys.gen.readable import alternatives
from torchtune_sys.knowledge import tables
from torchtune_sys.rules import CATALOGUE

REPO = Path(__file__).resolve().parent.parent


def gen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "torchtune_sys.gen", *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.essential
def test_generated_files_are_current() -> None:
    found = gen("check", str(REPO))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.long
def test_a_stale_file_is_noticed_and_mended(tmp_path: Path) -> None:
    assert gen("check", str(tmp_path)).returncode == 1
    assert gen("write", str(tmp_path)).returncode == 0
    assert gen("check", str(tmp_path)).returncode == 0
    (tmp_path / "docs/rules/README.md").write_text("old")
    assert gen("check", str(tmp_path)).returncode == 1


def test_a_cause_shows_words_and_no_regular_expression() -> None:
    for row in (*tables.rows("sentences"), *tables.rows("operations")):
        shown = alternatives(row["pattern"])
        assert shown and not [words for words in shown if re.search(r"\(\?|\\[bdsSwW]|\{\d", words)], (row["pattern"], shown)


def test_every_rule_and_cause_has_its_page_and_nothing_is_left_over(tmp_path: Path) -> None:
    for folder, names in (
        ("rules", {rule.id for rule in CATALOGUE}),
        ("causes", {row["cause"] for row in tables.rows("causes")}),
    ):
        assert {page.stem for page in (REPO / "docs" / folder).glob("*.md")} == names | {"README"}
    assert {rule.cause for rule in CATALOGUE if rule.cause} <= {row["cause"] for row in tables.rows("causes")}
    (tmp_path / "docs/rules").mkdir(parents=True)
    (tmp_path / "docs/rules/a-rule-that-is-gone.md").write_text("old")
    assert "left over" in gen("check", str(tmp_path)).stdout
    assert gen("write", str(tmp_path)).returncode == 0
    assert not (tmp_path / "docs/rules/a-rule-that-is-gone.md").exists()


def test_a_wrong_word_is_a_usage_error() -> None:
    assert gen("wrote").returncode == 2
