"""Runs of the joint pre-flight on namespaces, one line of JSON each, for docs/joint-faults.md. From the repository's root:

    PYTHONPATH=tests python -m preflight.joint clean COUNT [NODES]
    PYTHONPATH=tests python -m preflight.joint fault NAME PLACE NODES [NAME PLACE NODES ...]
    PYTHONPATH=tests python -m preflight.joint isolate NODES NAME SEED [NAME SEED ...]      docs/isolation-faults.md; SEED may be 1-5
    PYTHONPATH=tests python -m preflight.joint series FILE MINUTES LANES [NAME SEED ...]     the must-show of the same page at eight nodes, or these
    PYTHONPATH=tests python -m preflight.joint table FILE...

TORCHTUNE_SYS_TEST_TORCH names a Python that has torch.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from preflight.joint import warm_torch
from preflight.joint.cluster import Run, cluster, preflight
from preflight.joint.faults import FAULTS, isolating, problems
from smoke.faults.bench import torch_python

BUDGET_S = 60.0
SEEDS = 20
AT_A_START = ("PYTHON", "LC_", "LANG", "TZ")
Wanted = list[tuple[str, int]]
"""Scenarios and their seeds."""


def clean(count: int, nodes: int) -> Iterator[dict[str, Any]]:
    """Healthy nodes again and again: each verdict must be go."""
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), nodes) as made:
            found = preflight(made, torch_python(), budget_s=BUDGET_S)
        verdicts = Counter(str(each.verdict.get("verdict", "none")) for each in found.told.values())
        yield {"fault": "none", "run": number, "nodes": nodes, "verdicts": dict(verdicts), **_measured(found), "why": _why(found)}


def fault(name: str, place: int, nodes: int) -> dict[str, Any]:
    """One fault at one place."""
    told = {"fault": name, "place": place, "nodes": nodes}
    try:
        with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), nodes) as made:
            found = preflight(made, torch_python(), **{"budget_s": BUDGET_S, **FAULTS[name].plant(made, place)})
            return {**told, "wrong": problems(FAULTS[name], made, place, found), **_measured(found)}
    except pytest.skip.Exception as why:
        return {**told, "skipped": str(why)}


def isolate(nodes: int, name: str, seed: int, python: str = "", **started: Any) -> dict[str, Any]:
    """One fault of the isolation, at nodes that the seed draws."""
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), nodes) as made:
        told, expected = isolating.SCENARIOS[name](made, random.Random(seed))
        words = ("--isolate", "--lists", folder, *told.pop("words", ()))
        budget = {"budget_s": isolating.BUDGET_S, "words": words}
        found = preflight(made, python or torch_python(), **{**budget, **started, **told})
        reports = [verdict["isolation"] for verdict in found.verdicts() if verdict.get("isolation")]
        rounds = [(each["purpose"], each["seconds"], each["failed"]) for each in reports[0]["rounds"]] if reports else []
    wrong = isolating.problems(expected, found)
    spent = {"rounds": len(rounds), "slowest_round": max([seconds for _, seconds, _ in rounds], default=0.0)}
    told_rounds = {"evidence": rounds} if wrong else {}
    return {"fault": f"isolate {name}", "place": seed, "nodes": nodes, "wrong": wrong, **spent, **_measured(found), **told_rounds}


def series(path: Path, minutes: float, wanted: Wanted) -> None:
    """One lane of the series: what no line of the file and no other lane has, until the time is up. Commands and workers are forked from processes
    that have read their modules (``warm``, ``warm_torch``)."""
    for name in [name for name in os.environ if name.startswith(AT_A_START)]:
        del os.environ[name]  # else nothing is forked: the ranks' environment has none of them
    import warm

    until_s = time.monotonic() + 60 * minutes
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder, warm_torch.python(Path(folder), torch_python()) as python:
        while time.monotonic() < until_s and (picked := _claimed(path, wanted)):
            found = isolate(8, *picked, python=python, tool=tuple(warm.PROGRAM))
            with path.open("a") as lines:
                lines.write(json.dumps({**found, "commit": commit, "ended": time.strftime("%FT%TZ", time.gmtime())}) + "\n")


def _claimed(path: Path, wanted: Wanted) -> tuple[str, int] | None:
    """The next run, seed by seed, which nobody has made or is making: a claim is worth something as long as its process lives."""
    with Path(f"{path}.claims").open("a+") as claims:
        fcntl.flock(claims, fcntl.LOCK_EX)
        claims.seek(0)
        rows = [row.split() for row in claims]
        taken = {(name, int(seed)) for name, seed, pid in rows if os.path.exists(f"/proc/{pid}")}
        done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        taken |= {(each["fault"].removeprefix("isolate "), each["place"]) for each in done}
        found = next((each for each in wanted if each not in taken), None)
        if found:
            claims.write(f"{found[0]} {found[1]} {os.getpid()}\n")
        return found


def _wanted(words: list[str]) -> Wanted:
    """Scenarios and seeds by their words; all that must be shown, seed by seed, where there are none."""
    if not words:
        return [(name, seed) for seed in range(1, SEEDS + 1) for name in isolating.MUST_SHOW]
    return [(words[at], seed) for at in range(0, len(words), 2) for seed in _seeds(words[at + 1])]


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _measured(found: Run) -> dict[str, Any]:
    return {"seconds": round(found.seconds, 1), "load": round(os.getloadavg()[0], 1), "left": found.left}


def _why(found: Run) -> list[str]:
    """What was found besides warnings."""
    return sorted(
        {
            f"{node['node']}: {cause['cause']}: {cause['seen'][:160]}"
            for verdict in found.verdicts()
            for node in verdict["nodes"]
            for cause in node["causes"]
            if cause["weight"] != "warning"
        }
    )


def table(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Rows of the page: by fault, what was run and what went wrong."""
    by_fault: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_fault.setdefault(line["fault"], []).append(line)
    yield "| fault | runs (nodes:place) | right | seconds (load) |"
    yield "|---|---|---|---|"
    for name, runs in by_fault.items():
        done = [run for run in runs if "skipped" not in run]
        right = [
            run
            for run in done
            if (not run.get("wrong") and run.get("verdicts", {"go": 0}).keys() == {"go"}) or run.get("wrong") == []
        ]
        where = ", ".join(
            dict.fromkeys(f"{run['nodes']}:{run['place']}" if "place" in run else f"{run['nodes']}" for run in done)
        )
        times = [run["seconds"] for run in done] or [0]
        loads = [run["load"] for run in done] or [0]
        yield (
            f"| {name} | {where} | {len(right)} of {len(done)} | {median(times):.0f} ({min(times):.0f} to {max(times):.0f})"
            f" at {min(loads):.0f} to {max(loads):.0f} |"
        )


def main(words: list[str]) -> None:
    if words[0] == "clean":
        for line in clean(int(words[1]), int((words[2:] or ["4"])[0])):
            print(json.dumps(line), flush=True)
    elif words[0] == "fault":
        for at in range(1, len(words), 3):
            print(json.dumps(fault(words[at], int(words[at + 1]), int(words[at + 2]))), flush=True)
    elif words[0] == "isolate":
        for name, seed in _wanted(words[2:]):
            print(json.dumps(isolate(int(words[1]), name, seed)), flush=True)
    elif words[0] == "series":
        lane = [sys.executable, "-m", "preflight.joint", "lane", *words[1:3], *words[4:]]
        for each in [subprocess.Popen(lane) for _ in range(int(words[3]))]:
            each.wait()
    elif words[0] == "lane":
        series(Path(words[1]), float(words[2]), _wanted(words[3:]))
    else:
        lines = [json.loads(line) for name in words[1:] for line in Path(name).read_text().splitlines()]
        print("\n".join(table(lines)))


if __name__ == "__main__":
    main(sys.argv[1:])
