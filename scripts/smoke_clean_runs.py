"""Run the smoke test again and again on a host with nothing wrong, and say how often it found something: it must be never.

    python scripts/smoke_clean_runs.py 30 --python ~/train/.venv/bin/python3 [--quick 20]

Prints a line for each run (with the host's load before and after it), the spread of its figures and what did not apply; exit status 1 if
any run was not a pass. --quick 20: twenty of them with --quick, spread among the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

_LOADED = 10
"""Mean load at which a host of two cores has five times what it can do."""


def run(python: str, rest: list[str]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "torchtune_sys", "smoke", "--python", python, "--no-proof", "--format", "json", *rest]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=1000)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--python", required=True)
    parser.add_argument(
        "--quick", type=int, default=0, metavar="COUNT", help="so many of the runs with --quick, spread among the others"
    )
    asked, rest = parser.parse_known_args()
    figures: dict[str, list[float]] = {}
    left_out: dict[str, str] = {}
    loads: list[float] = []
    alarms = 0
    for number in range(1, asked.count + 1):
        quick = number * asked.quick // asked.count > (number - 1) * asked.quick // asked.count
        before = os.getloadavg()[0]
        report = run(asked.python, [*rest, *(["--quick"] if quick else [])])
        level, load = report["team"]["level"], (before + os.getloadavg()[0]) / 2
        bad = [
            f"{stage['stage']}: {stage['cause']} {stage['seen']}"
            for stage in report["stages"]
            if stage["verdict"] not in ("pass", "na")
        ]
        alarms += bool(bad)
        loads.append(load)
        print(
            f"{number:3} {level:8}{report['verdict']:8}{report['seconds']:6.1f} s  load {load:5.1f}  {'; '.join(bad)}", flush=True
        )
        figures.setdefault(f"whole run, {level} (s)", []).append(report["seconds"])
        left_out |= {stage["stage"]: stage["seen"] for stage in report["stages"] if stage["verdict"] == "na"}
        for stage in report["stages"]:
            figures.setdefault(f"{stage['stage']}, {level} (s)", []).append(stage["seconds"])
            for figure in stage["figures"]:
                figures.setdefault(f"{stage['stage']}: {figure['name']} ({figure['unit']})", []).append(figure["value"])
    for name, values in figures.items():
        print(f"{name:50} {min(values):10.4g} {statistics.median(values):10.4g} {max(values):10.4g}")
    for stage, why in left_out.items():
        print(f"na {stage}: {why}")
    told = f"load {min(loads):.1f} to {max(loads):.1f}, {sum(load >= _LOADED for load in loads)} of them at {_LOADED} or more"
    print(f"{asked.count} runs ({told}), {alarms} with a finding")
    return bool(alarms)


if __name__ == "__main__":
    sys.exit(main())
