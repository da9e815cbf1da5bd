"""The smoke test is itself tested: each fault, injected from outside, is caught by the right stage with the right cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smoke.faults import hosting
from smoke.faults.asked import SELDOM, Outcomes, assert_named, cases, together
from smoke.faults.forking import FORKING
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS
from torchtune_sys.smoke.names import stage_names

WITHOUT_SOLE_FAULT = {"copy", "sync-batchnorm", "shared-gpu"}
"""Stages that need a GPU: na on the machines that these tests run on."""
REPEATED_LATER = {"stress"}
"""The stragglers do its work once more: what computes wrongly now and then shows in both."""


@pytest.mark.essential
@pytest.mark.parametrize("fault", cases([fault for fault in FAULTS if not fault.run and fault not in hosting.ROWS]))
def test_fault_is_named(fault: Fault, tmp_path: Path) -> None:
    assert_named(fault, Outcomes(), tmp_path)


def test_faults_of_one_run_have_stages_of_their_own() -> None:
    for fault in FAULTS:
        those = together(fault)
        shown = [stage for one in those for stage in (one.stage, *one.others)]
        assert len({*shown}) == len(shown), fault.run
        alike = {(one.means, one.ranks, one.quick, not one.stages) for one in those}
        assert len(those) == 1 or alike == {("sitecustomize", 2, False, not fault.stages)}, fault.run


def test_every_stage_has_a_fault_that_only_it_catches() -> None:
    caught = {fault.stage for fault in FAULTS if fault.sole and not fault.wrong} | {
        fault.stage for fault in FAULTS if fault.stage == fault.stages == "compile" and not fault.wrong
    }
    uncaught, known = {*stage_names(), "import"} - caught, WITHOUT_SOLE_FAULT | REPEATED_LATER
    assert not uncaught - known, f"add to tests/smoke/faults/ a fault that fails {', '.join(uncaught - known)} alone"
    assert not known - uncaught, "these are caught alone: take them from WITHOUT_SOLE_FAULT or REPEATED_LATER"


def test_names_are_unique_and_stages_exist() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len({*names})
    assert SELDOM.keys() < {*names}
    known = {"import", *stage_names()}
    for fault in FAULTS:
        assert {fault.stage, *fault.others, *filter(None, fault.stages.split(","))} <= known, fault.name


_LAUNCHER = """
import os, subprocess, sys
read, write = os.pipe()
env = {"RANK": "1", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "3", "PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"], "LC_ALL": "C.UTF-8"}
child = subprocess.Popen([sys.executable, "-u", sys.argv[1], str(write)], env=env, pass_fds=[write], start_new_session=True)
os.close(write)
print(child.pid, os.getpid(), child.wait(), os.read(read, 1).decode())
"""
_RANK = """
import json, os, sys
own = dict(line.split("=", 1) for line in open("/proc/self/environ").read().split("\\0") if line)
write = int(sys.argv[1])
more = {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, write}  # the list's own
print(json.dumps([os.getpid(), os.getppid(), os.getsid(0), sorted(own), own == dict(os.environ), len(more)]))
print(json.dumps([__name__, sys.modules["__main__"].__name__, "once" if sys.modules.get("torch") else ""]))
os.write(write, os.environ["OMP_NUM_THREADS"].encode())
sys.exit(7)
"""


@pytest.mark.parametrize("forked", [True, False])
def test_a_forked_rank_stands_where_a_started_one_does(tmp_path: Path, forked: bool) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "sitecustomize.py").write_text(FORKING if forked else "")
    for name, text in (("launcher.py", _LAUNCHER), ("rank.py", _RANK)):
        (tmp_path / name).write_text(text)
    argv = [sys.executable, str(tmp_path / "launcher.py"), str(tmp_path / "rank.py")]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "LC_ALL": "C.UTF-8", "ROOM": "for more" * 20}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
    told, names, last = done.stdout.splitlines()
    child, launcher, status, threads = map(int, last.split())
    variables = ["LC_ALL", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "PATH", "PYTHONPATH", "RANK"]
    assert json.loads(told) == [child, launcher, child, variables, True, 1], done
    assert json.loads(names) == ["__main__", "__main__", "once" if forked else ""] and (status, threads) == (7, 3)
