"""Which faults the tests try, and how. Each kind has a file of tests, so that they run beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from conftest import TIER
from smoke.faults.bench import NotHere, Outcome, torch_python
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS
from smoke.faults.trial import expected, tried


def _repeats() -> set[str]:
    """Return the faults that end at the stage and with the cause of one before them, and that no single stage answers for."""
    met: set[tuple[str, str]] = set()
    found = set()
    for fault in FAULTS:
        if (fault.stage, fault.cause) in met and not fault.sole and not fault.quick:
            found.add(fault.name)
        met.add((fault.stage, fault.cause))
    return found


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
"""Faults that CI leaves to ``./run test --all``, with what it tries in their place."""
EXHAUSTIVE = _repeats() | SELDOM.keys()


def _case(fault: Fault) -> object:
    marks = [pytest.mark.slow if fault.quick else pytest.mark.long]
    marks += [pytest.mark.exhaustive] if fault.name in EXHAUSTIVE else []
    marks += [pytest.mark.xfail(reason=fault.wrong, strict=True)] if fault.wrong else []
    return pytest.param(fault, id=fault.name, marks=marks)


def together(fault: Fault) -> list[Fault]:
    """Those that share its run."""
    alone = not fault.run or TIER == "all"
    return [fault] if alone else [one for one in FAULTS if one.run == fault.run]


def cases(faults: Sequence[Fault]) -> list[object]:
    return [_case(fault) for fault in faults]


def assert_named(fault: Fault, outcomes: dict[str, Outcome], folder: Path) -> None:
    """``outcomes``: of the runs that faults share."""
    others = together(fault)
    name = fault.run if len(others) > 1 else fault.name
    try:
        outcome = outcomes.get(name) or outcomes.setdefault(name, tried(others, folder, torch_python()))
    except NotHere as why:
        pytest.skip(str(why))
    wrong = expected(fault, outcome, {one.stage for one in others})
    if wrong:  # should it be tried once more, then not by the same outcome
        del outcomes[name]
    assert not wrong, "\n".join([*wrong, outcome.told])
