"""Which faults the tests try, and how. Each kind has a file of tests, so that they run beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import TIER
from smoke.faults.bench import NotHere, Outcome, torch_python
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS
from smoke.faults.trial import expected, tried

SELDOM = {
    "autocast-wrong-dtype": "autocast-off breaks the same stage by the same means",
    "amp-step-lost": "autocast-off breaks the same stage by the same means",
    "disk-full-sharded": "disk-full fills the same disk for the other kind of checkpoint",
    "illegal-instruction": "rank-killed ends a rank by a signal, too",
    "no-libc-headers": "no-compiler lacks a part of the same tool",
    "no-python-headers": "no-compiler lacks a part of the same tool",
    "rank-killed-in-exchange": "rank-killed ends a rank by the same signal",
    "threads-limit": "pids-limit sets the same limit of a cgroup",
}
"""Faults that are never the one of their stage that CI tries, with what shows the same."""


def _one_of_each() -> set[str]:
    """Return the faults that CI tries: the first that ends at a stage, and the first that is injected by a means, preferring those
    that do not ask for all stages by themselves, then those that no other stage catches, then those whose run tries most; with each come those
    that share its run."""
    shared = Counter(fault.run for fault in FAULTS if fault.run)

    def dear(fault: Fault) -> tuple[int, ...]:
        seldom = bool(fault.wrong), fault.name in SELDOM, not fault.run, not fault.run and not fault.stages, not fault.sole
        return *seldom, -shared[fault.run]

    chosen: dict[tuple[str, str], Fault] = {}
    for fault in sorted(FAULTS, key=dear):
        for kind in (("stage", fault.stage), ("means", fault.means)):
            chosen.setdefault(kind, fault)
    runs = {fault.run for fault in chosen.values() if fault.run}
    return {fault.name for fault in chosen.values()} | {fault.name for fault in FAULTS if fault.run in runs}


CHOSEN = _one_of_each() | {"no-gradient-synchronisation"}
"""Those that CI tries, with what DDP is for. ``./run test --all`` tries them all."""


def _case(fault: Fault) -> object:
    marks = [pytest.mark.slow if fault.quick else pytest.mark.long]
    marks += [pytest.mark.exhaustive] if fault.name not in CHOSEN and not fault.quick else []
    marks += [pytest.mark.turn(int(fault.run[-1]) % 3)] if fault.run else []  # else each turn makes each run
    marks += [pytest.mark.xfail(reason=fault.wrong, strict=True)] if fault.wrong else []
    return pytest.param(fault, id=fault.name, marks=marks)


def together(fault: Fault) -> list[Fault]:
    """Those that share its run."""
    alone = not fault.run or TIER == "all"
    return [fault] if alone else [one for one in FAULTS if one.run == fault.run]


def cases(faults: Sequence[Fault]) -> list[object]:
    return [_case(fault) for fault in faults]


@dataclass(frozen=True)
class Outcomes:
    """What came out so far where faults are planted beside each other."""

    of_runs: dict[str, Outcome] = field(default_factory=dict)
    """By the name of a run that faults share: its first outcome."""
    untold: dict[str, Outcome] = field(default_factory=dict)
    """By the name of a fault: the outcome in which it was not told rightly."""


def assert_named(fault: Fault, outcomes: Outcomes, folder: Path) -> None:
    """Plant a fault, or take the outcome of the run that it shares. One that was not told rightly there is tried once more by those of the same faults that
    are of the stages in question, in these alone."""
    others = together(fault)
    beside = {stage for one in others for stage in (one.stage, *one.others)} if len(others) > 1 else set()
    before = outcomes.untold.get(fault.name)
    try:
        if before:
            strange = {stage for stage, verdict in before.verdicts.items() if verdict not in ("pass", "na")} - beside
            stages = {fault.stage, *strange}
            outcome = tried([one for one in others if one.stage in stages], folder, torch_python(), stages)
        else:
            outcome = outcomes.of_runs.get(fault.run) or tried(others, folder, torch_python())
    except NotHere as why:
        pytest.skip(str(why))
    if len(others) > 1:
        outcomes.of_runs.setdefault(fault.run, outcome)
    wrong = expected(fault, outcome, beside)
    if wrong and len(others) > 1:
        outcomes.untold[fault.name] = outcome
    assert not wrong, "\n".join([*wrong, outcome.told, _dropped()])


def _dropped() -> str:
    """What this machine's kernel has dropped since it started: a connection within the host that times out has its reason there."""
    names, counts = [
        line.split()[1:] for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    ]
    seen = [f"{name} {count}" for name, count in zip(names, counts, strict=True) if "Drop" in name or "Overflow" in name]
    return "since the machine started: " + ", ".join(one for one in seen if not one.endswith(" 0"))
