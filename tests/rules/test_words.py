"""What rules say of this command itself is true of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchtune_sys import rules
from torchtune_sys.cli.main import cli

TEXTS = sorted(Path(rules.__file__).parent.rglob("*.py"))
TOLD = re.compile(r"\bspecify\b|was specified \(|is not known \(|does not say|says how many")
"""Words with which a rule speaks of this command's options, not of another program's."""


@pytest.fixture(scope="module")
def options() -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", CliRunner().invoke(cli, ["check", "--help-all"]).output))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_options_that_a_person_is_told_to_give_exist(path: Path, options: set[str]) -> None:
    lines = [line for line in path.read_text().splitlines() if TOLD.search(line)]
    assert {word for line in lines for word in re.findall(r"--[a-z][a-z-]+", line)} <= options


def test_the_words_are_those_in_use() -> None:
    assert sum(bool(TOLD.search(line)) for path in TEXTS for line in path.read_text().splitlines() if "--" in line) > 6
