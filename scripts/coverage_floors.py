"""Measure how much of some rooms their tests run, and hold each to its floor: ``./run coverage``.

    python scripts/coverage_floors.py [-n WORKERS]      # run the tests of [tool.torchtune-sys.coverage], judge what they ran
    python scripts/coverage_floors.py --judge FILE      # judge a report that coverage.py wrote (build/coverage.json)

A figure counts statements and branches. A room below its floor fails, and the modules that miss most of it are named with their lines. Floors
stand in pyproject.toml, each at or below what a whole run measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
MADE = ROOT / "build" / "coverage.json"
_PACKAGE = "torchtune_sys/"
_MODULES_SHOWN, _LINES_SHOWN = 3, 8


class Room(NamedTuple):
    """A folder or module of the package, and how much of it ran."""

    name: str
    floor: float
    ran: int
    of: int
    modules: tuple[tuple[int, str, tuple[int, ...]], ...]
    """What did not run, the most first: how many statements and branches, the module, its lines."""

    @property
    def percent(self) -> float:
        return 100 * self.ran / self.of if self.of else 0.0

    @property
    def is_low(self) -> bool:
        return self.percent < self.floor


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("-n", metavar="WORKERS", default=str(os.cpu_count() or 1), help="how many tests at once")
    options.add_argument("--judge", metavar="FILE", type=Path, help="run nothing, judge this report")
    given = options.parse_args()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["torchtune-sys"]["coverage"]
    status = 0 if given.judge else _run(wanted["tests"], wanted["floors"], given.n)
    report = given.judge or MADE
    if not report.exists():
        print(f"coverage: {report} was not written")
        return status or 2
    found = rooms(json.loads(report.read_text(encoding="utf-8")), wanted["floors"])
    print("\n".join(table(found)))
    return status or int(any(room.is_low for room in found))


def _run(tests: list[str], names: Iterable[str], workers: str) -> int:
    MADE.unlink(missing_ok=True)
    MADE.with_name("coverage.data").unlink(missing_ok=True)
    # Only these rooms are traced: what reads recordings for them takes much of the time.
    traced = [f"--cov=torchtune_sys.{name.replace('/', '.')}" for name in names]
    words = ["-q", "-n", workers, "--dist", "loadfile", *traced, "--cov-branch", f"--cov-report=json:{MADE}"]
    # Python 3.14 counts branches by sys.monitoring, at a fraction of the cost; older ones by a tracing function.
    core = {"COVERAGE_CORE": "sysmon"} if sys.version_info >= (3, 14) else {}
    # What a run leaves beside its report belongs to this run: two checkouts on one machine do not meet.
    env = {**os.environ, **core, "COVERAGE_FILE": str(MADE.with_name("coverage.data"))}
    MADE.parent.mkdir(exist_ok=True)
    # Of folders the tests that ./run test tries; a file that is named is run whole (tests/conftest.py), so these are not named together.
    folders = [path for path in tests if (ROOT / path).is_dir()]
    files = ["--cov-append", *(path for path in tests if path not in folders)]
    asked = [[sys.executable, "-m", "pytest", *words, *those] for those in (folders, files)]
    return max([abs(subprocess.run(each, cwd=ROOT, env=env, check=False).returncode) for each in asked])


def rooms(report: Mapping[str, Any], floors: Mapping[str, float]) -> list[Room]:
    """Return the rooms that have a floor; a file belongs to the longest name that it lies below. One without any file is at 0 percent."""
    files: dict[str, list[tuple[str, Mapping[str, Any]]]] = {name: [] for name in floors}
    for path, file in report["files"].items():
        module = path.rpartition(_PACKAGE)[2].removesuffix(".py")
        name = max((name for name in floors if module == name or module.startswith(f"{name}/")), key=len, default=None)
        if name is not None:
            files[name].append((module, file))
    return [_room(name, floors[name], files[name]) for name in floors]


def _room(name: str, floor: float, files: list[tuple[str, Mapping[str, Any]]]) -> Room:
    ran = of = 0
    missed = []
    for module, file in files:
        counts = file["summary"]
        here = counts["covered_lines"] + counts["covered_branches"]
        all_here = counts["num_statements"] + counts["num_branches"]
        ran, of = ran + here, of + all_here
        missed.append((all_here - here, module, tuple(file["missing_lines"])))
    return Room(name, floor, ran, of, tuple(sorted(missed, reverse=True)))


def table(found: list[Room]) -> list[str]:
    rows = ["room                      counted   ran %   floor"]
    for room in found:
        rows.append(
            f"{room.name:<24} {room.of:>8} {room.percent:>7.1f} {room.floor:>7.1f}{'  BELOW ITS FLOOR' if room.is_low else ''}"
        )
        for missed, module, lines in room.modules[:_MODULES_SHOWN] if room.is_low else ():
            shown = ", ".join(map(str, lines[:_LINES_SHOWN])) + (" …" if len(lines) > _LINES_SHOWN else "")
            rows.append(f"    {module}: {missed} missed; lines {shown or '-'}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
