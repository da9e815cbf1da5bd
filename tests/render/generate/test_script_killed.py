"""Killed before and after each program that the script starts, making changes and taking them back: ``--undo`` restores everything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from script_plans import change, plan
from script_root import PROGRAMS, Root
from test_script import FILE, SWAP, sysctl

from conftest import TIER
from torchtune_sys.model.plan import CommandStep, FileLine, Unit, Value
from torchtune_sys.render.generate.script import script

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")]
KILLER = """#!/bin/bash
if [[ ! -e /tmp/at ]]; then exec /real/{name} "$@"; fi
count=$(</tmp/count)
echo "$((count + 1))" >/tmp/count
at=$(</tmp/at)
if [[ ${{at}} == "before ${{count}}" ]]; then kill -9 0; fi
/real/{name} "$@"
status=$?
if [[ ${{at}} == "after ${{count}}" ]]; then kill -9 0; fi
exit "${{status}}"
"""
STRIDE = int(os.environ.get("TORCHTUNE_SYS_TEST_STRIDE", "7" if TIER == "all" else "16"))
"""Every so many programs; 1 takes minutes."""
PLAN = plan(
    sysctl(SWAP, "10"),
    change("thp", Value(path="/sys/thp", value="madvise"), FileLine(path="/etc/new/deep/x.conf", key="thp", text="w x")),
    change("u", Unit(unit="u", enabled=True)),
    change("flag", CommandStep(argv=("ln", "-sfT", "x", "/etc/flag"), undo=("rm", "-f", "/etc/flag"))),
)


@pytest.mark.parametrize("undoing", [False, True], ids=["apply", "undo"])
def test_killed_at_every_program(undoing: bool, tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.path("/real").mkdir()
    for name in (*PROGRAMS, "systemctl"):
        root.path(f"/bin/{name}").rename(root.path(f"/real/{name}"))
        root.put(f"/bin/{name}", KILLER.format(name=name), 0o755)
    root.put(SWAP, "60\n")
    root.put("/sys/thp", "never\n")
    root.put(FILE, "# mine, no newline", 0o640)
    os.setxattr(root.path(FILE), "trusted.torchtune", b"\0kept")
    before, text = root.state(), script(PLAN)
    points = changed = 0
    for when in ("before", "after"):
        for number in range(0 if when == "before" else STRIDE // 2, 1000, STRIDE):
            if undoing:
                assert root.run(text).returncode == 0
            root.put("/tmp/count", "0\n")
            root.put("/tmp/at", f"{when} {number}\n")
            killed = root.run(text, *(["--undo"] if undoing else [])).returncode
            root.path("/tmp/at").unlink()
            changed += {**root.state(), **before} != root.state()
            if not undoing and number % 5 == 0:
                assert root.run(text).returncode == 0, "a second run does not go on"
                assert root.run(text, "--check").returncode == 0
            back = root.run(text, "--undo")
            assert (back.returncode, back.stderr) == (0, ""), f"{when} {number}"
            assert root.state() == before, f"{when} {number}"
            if killed == 0:
                break
            points += 1
    print(f"{'undo' if undoing else 'apply'}: killed at {points} points, {changed} of them with something changed")
    assert points > 70 / STRIDE and changed > 50 / STRIDE
