"""Tries a part of a list and writes a line for each fault: ``PYTHONPATH=tests python -m smoke.faults.lists 18-opened [NAME …]``; without a name of a
part, the parts that there are.

right: the stage, the cause and the rank that were expected; another stage: the same cause elsewhere; vague: something failed without a
cause; wrong: with another cause; not noticed: nothing failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from smoke.faults.bench import NotHere, Outcome
from smoke.faults.lists import by_name
from smoke.faults.row import Fault
from smoke.faults.trial import expected, tried, words


def main(part: str, names: list[str]) -> None:
    lists = by_name()
    if part not in lists:
        sys.exit(f"no list is called {part}: there are {', '.join(lists)}")
    for fault in lists[part]:
        if names and fault.name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="tt-") as folder:
            try:
                outcome = tried([fault], Path(folder), os.environ["TORCHTUNE_SYS_TEST_TORCH"])
            except NotHere as why:
                print(f"{part}\t{fault.name}\tskipped\t{why}", flush=True)
                continue
        failed = [f"{name} {found['cause']!r}: {words(found)[:150]}" for name, found in _failed(outcome)]
        print(f"{part}\t{fault.name}\t{_grade(fault, outcome)}\t{outcome.seconds:.0f} s\t{'; '.join(failed)}", flush=True)
        if os.environ.get("VERBOSE"):
            print(outcome.told, flush=True)


def _failed(outcome: Outcome) -> list[tuple[str, dict[str, object]]]:
    return [(name, found) for name, found in outcome.stages.items() if found["verdict"] not in ("pass", "na")]


def _grade(fault: Fault, outcome: Outcome) -> str:
    failed = _failed(outcome)
    if not fault.cause:
        return "no alarm" if outcome.rc == 0 else "false alarm"
    if not expected(fault, outcome):
        return "right"
    if not failed:
        return "not noticed" if outcome.stages else "no report"
    causes = [found["cause"] for _, found in failed]
    if fault.cause in causes:
        return "right cause"
    return "wrong" if any(causes) else "vague"


main((sys.argv[1:] or [""])[0], sys.argv[2:])
