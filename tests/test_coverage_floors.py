"""The gate of ``./run coverage`` fails where it must; the measurement itself is too dear for each change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torchtune_sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parent.parent
WANTED = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["torchtune-sys"]["coverage"]


def judged(tmp_path: Path, missed: dict[str, tuple[int, ...]]) -> tuple[int, str]:
    """Return status and words over a report in which 1,000 lines of each room ran, but those of ``missed``."""
    files: dict[str, Any] = {}
    for room in WANTED["floors"]:
        gone = list(missed.get(room, ()))
        counts = {"num_statements": 1000, "covered_lines": 1000 - len(gone), "num_branches": 0, "covered_branches": 0}
        files[f"/x/site-packages/torchtune_sys/{room}/made.py"] = {"summary": counts, "missing_lines": gone}
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps({"files": files}))
    words = [sys.executable, "scripts/coverage_floors.py", "--judge", str(report)]
    ended = subprocess.run(words, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_a_room_below_its_floor_fails_and_names_the_lines(tmp_path: Path) -> None:
    status, said = judged(tmp_path, {"evidence": tuple(range(7, 607))})
    assert status == 1, said
    assert [row.split()[0] for row in said.splitlines() if "BELOW ITS FLOOR" in row] == ["evidence"]
    assert "evidence/made: 600 missed; lines 7, 8, 9" in said


def test_rooms_at_their_floors_pass(tmp_path: Path) -> None:
    status, said = judged(tmp_path, {"evidence": (1,)})
    assert status == 0 and "BELOW" not in said, said


def test_a_room_of_which_nothing_ran_is_below_its_floor(tmp_path: Path) -> None:
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps({"files": {}}))
    words = [sys.executable, "scripts/coverage_floors.py", "--judge", str(report)]
    assert subprocess.run(words, cwd=REPO, capture_output=True, timeout=60, check=False).returncode == 1


def test_every_floor_has_a_room_and_every_test_is_there() -> None:
    package = Path(torchtune_sys.__file__).parent
    assert WANTED["floors"]
    assert [name for name in WANTED["floors"] if not (package / name).is_dir() and not (package / f"{name}.py").is_file()] == []
    assert [path for path in WANTED["tests"] if not (REPO / path).exists()] == []
    assert all(50 < floor <= 100 for floor in WANTED["floors"].values())
