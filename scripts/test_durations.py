"""Print where a test run's time went: ``python scripts/test_durations.py [--slowest N] [--by-file N] [--costs] [JUNIT-XML …]``.

Reads the JUnit files that ``./run test`` leaves in build/durations. Seconds are those of the clock, and grow with whatever else the
machine does; CPU seconds are those of the test and of the children it waited for, and hardly do. What a test takes by the clock
and not of a processor, it waits. ``--costs`` writes tests/costs.csv, by which ``./run test`` leaves costly tests to CI: after a run
of ``TORCHTUNE_SYS_TEST_TURN=all ./run test --long`` with nothing beside it. Where JUnit files are named, it writes the rows of the test files in them anew.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
FOLDER = REPO / "build" / "durations"
COSTS = REPO / "tests" / "costs.csv"
COSTLY_S = 0.2
"""What a test may cost that ``./run test`` runs: CPU seconds, the median of its rows."""


class Test(NamedTuple):
    file: str
    name: str
    seconds: float
    cpu_seconds: float
    skipped: bool


def tests_of(path: Path) -> list[Test]:
    """Return the tests in a JUnit file; one that ran twice counts with both runs."""
    return [_test(case) for case in ET.parse(path).getroot().iter("testcase")]


def _test(case: ET.Element) -> Test:
    spent = [float(each.get("value", "0")) for each in case.iter("property") if each.get("name") == "cpu_s"]
    return Test(
        case.get("classname", ""),
        case.get("name", ""),
        float(case.get("time", "0")),
        max(spent, default=0.0),
        case.find("skipped") is not None,
    )


def table(tests: Iterable[Test], slowest: int, files: int) -> Iterable[str]:
    """Yield the lines of the report."""
    ran = [test for test in tests if not test.skipped]
    yield f"{len(ran)} tests, {sum(t.seconds for t in ran):.0f} s by the clock, {sum(t.cpu_seconds for t in ran):.0f} CPU s"
    yield f"\n{'seconds':>8} {'CPU s':>8}  the {slowest} slowest tests"
    for test in sorted(ran, key=lambda test: -test.seconds)[:slowest]:
        yield f"{test.seconds:8.1f} {test.cpu_seconds:8.1f}  {test.file}::{test.name}"
    by_file: dict[str, list[Test]] = defaultdict(list)
    for test in ran:
        by_file[test.file].append(test)
    sums = {name: (sum(t.seconds for t in held), sum(t.cpu_seconds for t in held)) for name, held in by_file.items()}
    yield f"\n{'seconds':>8} {'CPU s':>8} {'tests':>6}  files"
    for name, (seconds, cpu_seconds) in sorted(sums.items(), key=lambda item: -max(item[1]))[:files]:
        yield f"{seconds:8.1f} {cpu_seconds:8.1f} {len(by_file[name]):6}  {name}"


def costs(tests: Iterable[Test], before: str = "") -> Iterable[str]:
    """Yield the lines of tests/costs.csv: those of files that did not run as they were ``before``."""
    rows: dict[str, list[float]] = defaultdict(list)
    for test in tests:
        if not test.skipped:
            rows[f"{test.file}::{test.name.partition('[')[0]}"].append(test.cpu_seconds)
    ran = {name.partition("::")[0] for name in rows}
    kept = [line for line in before.splitlines()[1:] if line.partition("::")[0] not in ran]
    yield "test,CPU seconds"
    yield from sorted([*kept, *(f"{name},{median(taken):.1f}" for name, taken in rows.items() if median(taken) > COSTLY_S)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("paths", nargs="*", type=Path, metavar="JUNIT-XML", help="without any: those in build/durations")
    parser.add_argument("--slowest", type=int, default=10, metavar="N", help="how many tests to list")
    parser.add_argument("--by-file", type=int, default=40, metavar="N", help="how many files to list")
    parser.add_argument("--costs", action="store_true", help="write tests/costs.csv instead")
    asked = parser.parse_args()
    paths = asked.paths or sorted(FOLDER.glob("*.xml"))
    if not paths:
        print(f"{FOLDER} holds no JUnit file: ./run test leaves them there", file=sys.stderr)
        return 2
    if asked.costs:
        lines = costs((test for path in paths for test in tests_of(path)), COSTS.read_text() if asked.paths else "")
        COSTS.write_text("".join(f"{line}\n" for line in [*lines]))
        return 0
    print("\n".join(table([test for path in paths for test in tests_of(path)], asked.slowest, asked.by_file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
