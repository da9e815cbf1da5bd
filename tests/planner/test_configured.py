"""A value that a file sets at the next boot, and that would do, is kept: ours comes later in the order and would lower it."""

from __future__ import annotations

import pytest
from simulate import Seen, recording

from torchtune_sys.model.plan import Line, Value
from torchtune_sys.rules import by_id

RULE = by_id()["task-table-small"]


@pytest.mark.parametrize(("configured", "written"), [("4194304", "4194304"), ("8192", "32768"), ("many", "32768")])
def test_a_better_value_at_boot_is_not_lowered(configured: str, written: str) -> None:
    files = {"/proc/sys/kernel/pid_max": "4096\n", "/usr/lib/sysctl.d/50-pid-max.conf": f"kernel.pid_max = {configured}\n"}
    dirs = {"/usr/lib/sysctl.d": ["50-pid-max.conf"]}
    (change,) = Seen(recording("healthy", files=files, dirs=dirs), [RULE]).plan.changes
    assert [step.value for step in change.steps if isinstance(step, Value)] == [written]
    assert [step.text for step in change.steps if isinstance(step, Line)] == [f"kernel.pid_max = {written}"]
