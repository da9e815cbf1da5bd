"""Which faults the tests try, and how. Each kind has a file of tests, so that they run beside each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from smoke.faults.bench import NotHere, Outcome, torch_python
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS
from smoke.faults.trial import expected, tried


def _repeats() -> set[str]:
    """Faults that end at the stage and with the cause of one before them, and that no single stage answers for: for time's sake they
    run with TORCHTUNE_SYS_TEST_LONG=all only."""
    met: set[tuple[str, str]] = set()
    found = set()
    for fault in FAULTS:
        if (fault.stage, fault.cause) in met and not fault.sole and not fault.quick:
            found.add(fault.name)
        met.add((fault.stage, fault.cause))
    return found


REPEATS = set() if os.environ.get("TORCHTUNE_SYS_TEST_LONG") == "all" else _repeats()


def _case(fault: Fault) -> object:
    marks = [pytest.mark.slow if fault.quick else pytest.mark.long]
    if fault.name in REPEATS:
        marks.append(pytest.mark.skip(reason="stage and cause are another fault's too: TORCHTUNE_SYS_TEST_LONG=all runs it"))
    marks += [pytest.mark.xfail(reason=fault.wrong, strict=True)] if fault.wrong else []
    return pytest.param(fault, id=fault.name, marks=marks)


def together(fault: Fault) -> list[Fault]:
    """Those that share its run."""
    alone = not fault.run or os.environ.get("TORCHTUNE_SYS_TEST_LONG") == "all"
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
