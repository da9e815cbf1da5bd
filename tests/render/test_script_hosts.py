"""The generated script makes the files and values that ``apply`` makes: on every failing host of the catalogue, without Python."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from script_root import Root, done, lay, pairs, settle
from simulate import Seen, recording

from conftest import HOSTS
from torchtune_sys.model import actions
from torchtune_sys.render.script import script
from torchtune_sys.rules import by_id

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
RULES = by_id()
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
BY_SUBJECT = ("hdd-scheduler-none.fail", "nvme-scheduler-not-none.fail", "read-ahead-small.fail", "shmmax-lowered.fail")
"""Their rules name what to change with the evidence only."""
LIKELY = [name for name in FAILING if any(map(actions.doable, RULES[name.split(".")[0]].fix)) or name in BY_SUBJECT]


@cache
def seen(name: str) -> Seen:
    return Seen(recording(name), [RULES[name.split(".")[0]]])


WITH_CHANGES = [name for name in LIKELY if seen(name).plan.changes]


@pytest.mark.parametrize("name", WITH_CHANGES)
def test_as_apply_twice_and_back(name: str, tmp_path: Path) -> None:
    host = seen(name)
    root = Root(tmp_path)
    lay(root, host, host.plan)
    text = script(host.plan)
    before = root.state()
    assert root.run(text, "--check").returncode == 1
    assert root.run(text, "--dry-run").returncode == 0
    assert root.state() == before
    was = pairs(root, host.plan)
    ran = root.run(text)
    settle(root, host.plan, was)
    print(
        f"{name}: {len(host.plan.changes)} changes, {sum(len(c.steps) for c in host.plan.changes)} steps, {len(host.plan.files)} files"
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert done(root, host, host.plan.changes) == []
    assert {f.path: (root.text(f.path), oct(root.path(f.path).stat().st_mode)) for f in host.plan.files} == {
        f.path: (f.content, oct(0o100000 | f.mode)) for f in host.plan.files
    }
    after = root.state()
    again = root.run(text)
    assert (again.returncode, again.stdout) == (0, "everything is as it should be\n")
    assert root.state() == after
    assert root.run(text, "--check").returncode == 0
    was = pairs(root, host.plan)
    back = root.run(text, "--undo")
    settle(root, host.plan, was)
    assert (back.returncode, back.stderr) == (0, ""), back.stdout
    assert root.state() == before
