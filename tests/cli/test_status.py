"""Exit statuses, as the design has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from driven import judged_by, run

import torchtune_sys


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("rules", "arguments", "status"),
    [
        ("E-passes", [], 0),
        ("W-fails A-fails E-passes", [], 0),
        ("E-fails", [], 1),
        ("W-fails", ["--fail-on", "warning"], 1),
        ("A-fails", ["--fail-on", "warning"], 0),
        ("A-fails", ["--fail-on", "advice"], 1),
        ("E-fails", ["--fail-on", "never"], 0),
        ("E-late", [], 3),
        ("E-late", ["--fail-on", "never"], 3),
        ("W-late", [], 0),
        ("W-late", ["--strict"], 0),
        ("E-denied", [], 0),
        ("E-denied", ["--strict"], 3),
        ("E-late E-fails", [], 1),
        ("E-denied E-fails", ["--strict"], 1),
        ("A-crashes E-passes", [], 4),
        ("E-crashes E-fails", [], 4),
        ("E-fails", ["--format", "nagios"], 2),
        ("W-fails", ["--format", "nagios"], 1),
        ("A-fails", ["--format", "nagios"], 0),
        ("E-late", ["--format", "nagios"], 3),
        ("E-denied", ["--format", "nagios"], 0),
        ("E-denied", ["--format", "nagios", "--strict"], 3),
        ("W-crashes", ["--format", "nagios"], 3),
    ],
)
def test_status(rules: str, arguments: list[str], status: int) -> None:
    found = judged_by(rules, *arguments)
    assert found.returncode == status, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("select", "strict", "status"), [("nvlink*", True, 3), ("nvlink*", False, 0), ("nvlink*,swappiness-high", True, 0)]
)
def test_strict_wants_something_to_be_judged(select: str, strict: bool, status: int) -> None:
    """ "Nothing to judge: no check applies", and exit 0, were said of rules by name, 3 of a family."""
    host = Path(__file__).parents[1] / "hosts/base-system.json"
    found = run("check", "--from", str(host), "--select", select, *["--strict"] * strict)
    assert found.returncode == status, found.stdout + found.stderr


def test_a_rule_that_crashes_keeps_no_other_from_being_reported() -> None:
    found = judged_by("E-crashes E-fails W-passes", "--format", "json")
    assert found.returncode == 4
    verdicts = {item["rule"]: item["verdict"] for item in json.loads(found.stdout)["results"]}
    assert verdicts == {"made-e-crashes": "crashed", "made-e-fails": "fail", "made-w-passes": "pass"}


def test_a_crash_is_told_to_people_too() -> None:
    found = judged_by("E-crashes E-fails")
    assert "ValueError: a rule's bug" in found.stdout and "[made-e-crashes]" in found.stdout
    assert "Title of made-e-fails" in found.stdout


@pytest.mark.parametrize(
    "arguments", [["--timeout", "x"], ["--select", "nonsense"], ["--from", "/no/such/file"], ["--config", "/"]]
)
def test_nagios_never_takes_a_wrong_call_for_critical(arguments: list[str]) -> None:
    found = run("check", "--format", "nagios", *arguments)
    assert found.returncode == 3
    assert found.stdout.startswith("TORCHTUNE-SYS UNKNOWN - ") and found.stdout.count("\n") == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["json", "junit", "markdown", "github", "prometheus", "text"])
def test_the_format_does_not_change_the_status(name: str) -> None:
    assert judged_by("E-fails", "--format", name).returncode == 1
    assert judged_by("E-late", "--format", name).returncode == 3


@pytest.mark.parametrize(
    ("words", "env", "status"),
    [
        (("check",), {}, 4),
        (("preflight",), {}, 4),
        (("preflight",), {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, 0),
        (("preflight", "--fail-closed"), {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, 4),
    ],
)
def test_an_installation_without_its_packages_says_so(
    words: tuple[str, ...], env: dict[str, str], status: int, tmp_path: Path
) -> None:
    """It ended with a traceback and Python's own 1, which is no-go in a hook of Slurm's."""
    (tmp_path / "torchtune_sys").symlink_to(Path(torchtune_sys.__file__).parent)
    for name in ("", "click"):
        if name:
            (tmp_path / name).symlink_to(Path(click.__file__).parent)
        start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from torchtune_sys.__main__ import main; main()"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", start, *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": "/usr/bin:/bin", **env},
        )
        assert (done.returncode, done.stdout) == (status, "")
        missing = "msgspec" if name else "click"
        assert done.stderr.startswith(f"torchtune-sys: this installation is incomplete: No module named '{missing}'\n"), (
            done.stderr
        )


def test_a_variable_that_leads_python_astray_is_named(tmp_path: Path) -> None:
    """PYTHONHOME of another environment: the interpreter finds another version's library, or none."""
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from torchtune_sys.__main__ import main; main()"
    (tmp_path / "torchtune_sys").symlink_to(Path(torchtune_sys.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start, "check"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHONHOME": "/opt/other"},
    )
    assert done.returncode == 4
    assert done.stderr.splitlines()[1:] == [
        "  PYTHONHOME=/opt/other sends each Python there for its own library: unset PYTHONHOME"
    ]
