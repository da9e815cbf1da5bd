"""The smoke test is itself tested: each fault, injected from outside, is caught by the right stage with the right cause."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smoke.faults.bench import NotHere, Outcome, torch_python
from smoke.faults.page import page
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS
from smoke.faults.trial import expected, tried
from torchtune_sys.smoke.names import stage_names

PAGE = Path(__file__).parents[2] / "docs" / "smoke-faults.md"
WITHOUT_SOLE_FAULT = {"copy", "sync-batchnorm", "shared-gpu"}
"""Stages that need a GPU: na on the machines that these tests run on."""


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


def _together(fault: Fault) -> list[Fault]:
    """Those that share its run."""
    alone = not fault.run or os.environ.get("TORCHTUNE_SYS_TEST_LONG") == "all"
    return [fault] if alone else [one for one in FAULTS if one.run == fault.run]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """Of the runs that faults share."""
    return {}


@pytest.mark.parametrize("fault", [_case(fault) for fault in FAULTS])
def test_fault_is_named(fault: Fault, outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    together = _together(fault)
    name = fault.run if len(together) > 1 else fault.name
    try:
        outcome = outcomes.get(name) or outcomes.setdefault(name, tried(together, tmp_path, torch_python()))
    except NotHere as why:
        pytest.skip(str(why))
    wrong = expected(fault, outcome, {one.stage for one in together})
    if wrong:  # should it be tried once more, then not by the same outcome
        del outcomes[name]
    assert not wrong, "\n".join([*wrong, outcome.told])


def test_faults_of_one_run_have_stages_of_their_own() -> None:
    for fault in FAULTS:
        together = _together(fault)
        assert len({one.stage for one in together}) == len(together), fault.run
        alike = {(one.means, one.ranks, one.quick, bool(one.others), not one.stages) for one in together}
        assert len(together) == 1 or alike == {("sitecustomize", 2, False, False, not fault.stages)}, fault.run


def test_every_stage_has_a_fault_that_only_it_catches() -> None:
    caught = {fault.stage for fault in FAULTS if fault.sole and not fault.wrong} | {
        fault.stage for fault in FAULTS if fault.stage == fault.stages == "compile" and not fault.wrong
    }
    assert {*stage_names(), "import"} - caught == WITHOUT_SOLE_FAULT


def test_names_are_unique_and_stages_exist() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len({*names})
    known = {"import", *stage_names()}
    for fault in FAULTS:
        assert {fault.stage, *fault.others, *filter(None, fault.stages.split(","))} <= known, fault.name


def test_page_is_current() -> None:
    assert PAGE.read_text() == page(), "PYTHONPATH=tests python -m smoke.faults > docs/smoke-faults.md"
