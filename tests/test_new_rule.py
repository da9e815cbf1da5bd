"""./run new-rule makes a rule that is loaded, linted and documented, in each family."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
FAMILIES = sorted(path.parent.name for path in (REPO / "src/torchtune_sys/rules").glob("*/__init__.py"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(REPO / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPO / "scripts/new_rule.py", tmp_path / "scripts")
    shutil.copytree(
        REPO / "tests/hosts", tmp_path / "tests/hosts", ignore=lambda _, names: [name for name in names if "base-" not in name]
    )
    shutil.copy(REPO / "pyproject.toml", tmp_path)
    return tmp_path


def python(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(copy / "src")}
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_a_stub_in_each_family_is_a_rule_of_the_catalogue(copy: Path) -> None:
    for family in FAMILIES:
        made = python(copy, "scripts/new_rule.py", f"new-{family}-defect", family)
        assert made.returncode == 0, made.stderr
        base = copy / f"tests/hosts/base-{family}.json"
        part = next(iter(json.loads(base.read_text()))) if base.exists() else "files"
        for verdict in ("fail", "unknown"):
            overlay = json.loads((copy / f"tests/hosts/new-{family}-defect.{verdict}.json").read_text())
            assert overlay == {"extends": "healthy.json", part: {}}
    names = "print(*(f'{rule.family}:{rule.id}' for rule in CATALOGUE if 'References' in rule.doc))"
    found = python(copy, "-c", f"from torchtune_sys.rules import CATALOGUE; {names}")
    assert {f"{family}:new-{family}-defect" for family in FAMILIES} <= set(found.stdout.split()), found.stderr
    ruff = Path(sys.executable).with_name("ruff")
    if ruff.exists():
        for arguments in (["check"], ["format", "--check"]):
            checked = subprocess.run(
                [ruff, *arguments, "--no-cache", "src"], cwd=copy, capture_output=True, text=True, timeout=60
            )
            assert checked.returncode == 0, checked.stdout


def test_the_steps_send_people_to_files_that_exist(copy: Path) -> None:
    """And to the ordinary machines of which a new rule says nothing, which only the whole tests told."""
    made = python(copy, "scripts/new_rule.py", "new-sysctl-defect", "sysctl")
    named = set(re.findall(r"(?:src|tests|docs)/[\w/-]+\.\w+", made.stdout.partition("Next:")[2]))
    assert {"tests/rules/test_typical.py", "tests/rules/test_platforms.py", "tests/hosts/base-sysctl.json"} <= named
    assert [name for name in sorted(named) if not (REPO / name).exists()] == []


@pytest.mark.parametrize(
    ("rule_id", "family", "told"),
    [
        ("swappiness-high", "sysctl", "there is a rule swappiness-high already"),
        ("fan-speed-low", "fans", "no family is called 'fans'; there are cpu, dataloader"),
        ("Fan", "hardware", "'Fan' is no id"),
        ("../../x-y", "hardware", "is no id"),
    ],
)
def test_what_cannot_be_a_rule_is_refused_and_nothing_written(copy: Path, rule_id: str, family: str, told: str) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    refused = python(copy, "-B", "scripts/new_rule.py", rule_id, family)
    assert refused.returncode == 2 and told in refused.stderr
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
