"""What ``check`` says of faults that are made by hand in namespaces of their own: of each eighth in CI, of all with ``./run test --all``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from library import COMPILER

from conftest import exhaustive
from live_faults import lab
from live_faults.lists import by_number
from live_faults.row import Fault

ROWS = [row for rows in by_number().values() for row in rows if not row.left]
PYTHON = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")
PROGRAM = (sys.executable, "-I", "-m", "torchtune_sys")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="namespaces of one's own need root and unshare"),
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the NVML stub"),
    pytest.mark.skipif(PYTHON in ("", "0"), reason="TORCHTUNE_SYS_TEST_TORCH names no interpreter with torch"),
]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """What is said where nothing is broken."""
    try:
        return {base: lab.looked(lab.PLAIN._replace(base=base), PROGRAM, PYTHON) for base in ("host", "gpu")}
    except (lab.NotHere, subprocess.TimeoutExpired) as why:
        pytest.skip(f"no such namespaces here: {why}")


@pytest.mark.parametrize(
    "fault", [*ROWS[::8], *exhaustive(*(row for at, row in enumerate(ROWS) if at % 8))], ids=lambda row: row.name
)
def test_the_fault_is_named_and_nothing_else(fault: Fault, plain: dict[str, Any]) -> None:
    try:
        report = lab.looked(fault, PROGRAM, PYTHON)
    except lab.NotHere as why:
        pytest.skip(f"this machine does not let it be made: {why}")
    assert lab.grade(fault, report, plain[fault.base]) == ("right", "")


def test_what_is_not_said_and_what_is_said_besides_is_seen(plain: dict[str, Any]) -> None:
    """The grading itself: an expectation that nothing fulfils, and a finding that nobody expected."""
    fault = Fault("files", "ulimit -n 256", "dev-shm-small", args="--nproc-per-node 2")
    report = lab.looked(fault, PROGRAM, PYTHON)
    assert lab.grade(fault, report, plain["host"]) == ("missed", "not said: dev-shm-small; besides: nofile-limit-too-low")
