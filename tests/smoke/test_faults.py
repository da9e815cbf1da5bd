"""The smoke test is itself tested: each fault, injected from outside, is caught by the right stage with the right cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from smoke.faults import hosting
from smoke.faults.asked import SELDOM, Outcomes, assert_named, cases, together
from smoke.faults.page import page
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS
from torchtune_sys.smoke.names import stage_names

PAGE = Path(__file__).parents[2] / "docs" / "smoke-faults.md"
WITHOUT_SOLE_FAULT = {"copy", "sync-batchnorm", "shared-gpu"}
"""Stages that need a GPU: na on the machines that these tests run on."""


@pytest.mark.essential
@pytest.mark.parametrize("fault", cases([fault for fault in FAULTS if not fault.run and fault not in hosting.ROWS]))
def test_fault_is_named(fault: Fault, tmp_path: Path) -> None:
    assert_named(fault, Outcomes(), tmp_path)


def test_faults_of_one_run_have_stages_of_their_own() -> None:
    for fault in FAULTS:
        those = together(fault)
        assert len({one.stage for one in those}) == len(those), fault.run
        alike = {(one.means, one.ranks, one.quick, bool(one.others), not one.stages) for one in those}
        assert len(those) == 1 or alike == {("sitecustomize", 2, False, False, not fault.stages)}, fault.run


def test_every_stage_has_a_fault_that_only_it_catches() -> None:
    caught = {fault.stage for fault in FAULTS if fault.sole and not fault.wrong} | {
        fault.stage for fault in FAULTS if fault.stage == fault.stages == "compile" and not fault.wrong
    }
    told = "add to tests/smoke/faults/ a fault that fails this stage alone"
    assert {*stage_names(), "import"} - caught == WITHOUT_SOLE_FAULT, told


def test_names_are_unique_and_stages_exist() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len({*names})
    assert SELDOM.keys() < {*names}
    known = {"import", *stage_names()}
    for fault in FAULTS:
        assert {fault.stage, *fault.others, *filter(None, fault.stages.split(","))} <= known, fault.name


def test_page_is_current() -> None:
    assert PAGE.read_text() == page(), "PYTHONPATH=tests python -m smoke.faults > docs/smoke-faults.md"
