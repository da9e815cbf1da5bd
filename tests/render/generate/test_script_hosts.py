"""The generated script makes the files and values that ``apply`` makes: on every failing host of the catalogue, without Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import msgspec
import pytest
from script_root import Root, done, lay, pairs, settle
from simulate import BY_SUBJECT, Seen, recording

from conftest import HOSTS, exhaustive
from torchtune_sys.model import actions
from torchtune_sys.model.plan import Change, Plan
from torchtune_sys.model.plan_context import SYSCTL_FILE, PlanContext
from torchtune_sys.remediation.plan import files
from torchtune_sys.render.generate.script import script
from torchtune_sys.rules import by_id

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
RULES = by_id()
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
LIKELY = [name for name in FAILING if any(map(actions.doable, RULES[name.split(".")[0]].fix)) or name in BY_SUBJECT]

Changes = list[tuple[Seen, Change]]
"""Each change with the host that needs it."""


@cache
def seen(name: str) -> Seen:
    return Seen(recording(name), [RULES[name.split(".")[0]]])


def with_changes() -> list[str]:
    return [name for name in LIKELY if seen(name).plan.changes]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LIKELY)
def test_as_apply_twice_and_back(name: str, tmp_path: Path) -> None:
    host = seen(name)
    if not host.plan.changes:
        pytest.skip("there is nothing to change")
    print(
        f"{name}: {len(host.plan.changes)} changes, {sum(len(c.steps) for c in host.plan.changes)} steps, {len(host.plan.files)} files"
    )
    root = Root(tmp_path)
    for path, content in host.ground.files.items():
        if isinstance(content, str):
            root.put(path, content, 0o640)
    as_apply_twice_and_back(root, [(host, change) for change in host.plan.changes], host.plan)


def as_apply_twice_and_back(root: Root, changes: Changes, plan: Plan) -> None:
    for host, change in changes:
        lay(root, host, [change])
    text = script(plan)
    before = root.state()
    assert root.run(text, "--check").returncode == 1
    assert root.run(text, "--dry-run").returncode == 0
    assert root.state() == before
    was = pairs(root, plan)
    ran = root.run(text)
    settle(root, plan, was)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert [wrong for host, change in changes for wrong in done(root, host, [change])] == []
    assert {f.path: (root.text(f.path), oct(root.path(f.path).stat().st_mode)) for f in plan.files} == {
        f.path: (f.content, oct(0o100000 | f.mode)) for f in plan.files
    }
    after = root.state()
    again = root.run(text)
    assert (again.returncode, again.stdout) == (0, "everything is as it should be\n")
    assert root.state() == after
    assert root.run(text, "--check").returncode == 0
    was = pairs(root, plan)
    back = root.run(text, "--undo")
    settle(root, plan, was)
    assert (back.returncode, back.stderr) == (0, ""), back.stdout
    assert root.state() == before


def union(root: Root) -> tuple[Changes, Plan]:
    """All changes of all those hosts in one plan, the first host's where several change the same; one file of ours is there already."""
    found: dict[str, tuple[Seen, Change]] = {}
    names = with_changes()
    for name in names:
        for change in seen(name).plan.changes:
            found.setdefault(change.key, (seen(name), change))
    present = f"{files.HEAD}\n\n# vm.old (x): y\nvm.old = 1\n# by hand, no newline at the end"
    root.put(SYSCTL_FILE, present, 0o600)
    together = PlanContext(files={SYSCTL_FILE: present}, tools=("systemctl", "udevadm"))
    changes = tuple(change for _, change in found.values())
    plan = msgspec.structs.replace(seen(names[0]).plan, changes=changes, files=files.owned(changes, together))
    steps = Counter(type(step).__name__ for change in plan.changes for step in change.steps)
    print(
        f"{len(names)} hosts with changes, in one plan {len(plan.changes)} changes, steps {dict(steps)}, {len(plan.files)} files"
    )
    assert len(plan.changes) > 30 and len(plan.files) >= 5 and set(steps) == {"Value", "FileLine", "Unit"}
    return list(found.values()), plan


@pytest.mark.long
def test_the_union_of_all_failing_hosts(tmp_path: Path) -> None:
    root = Root(tmp_path)
    as_apply_twice_and_back(root, *union(root))


@pytest.mark.exhaustive
def test_no_other_host_has_something_to_change() -> None:
    others = [name for name in FAILING if name not in LIKELY]
    assert [name for name in others if Seen(recording(name), [RULES[name.split(".")[0]]]).plan.changes] == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("suite", ["bookworm", *exhaustive("bullseye", "trixie")])
def test_in_a_clean_debian_without_python(suite: str, tmp_path: Path) -> None:
    root = Root(tmp_path, debian(suite))
    assert not list(root.folder.glob("usr/bin/python3*"))
    as_apply_twice_and_back(root, *union(root))


def debian(suite: str) -> Path:
    """Debian's essential packages as an archive, made once."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchtune-sys-tests"
    made = folder / f"debian-{suite}.tar"
    if not made.exists():
        if shutil.which("mmdebstrap") is None:
            pytest.skip("needs mmdebstrap")
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"debian-{suite}.{os.getpid()}.tar"
        command = ["mmdebstrap", "--quiet", "--variant=essential", suite, str(draft)]
        if subprocess.run(command, capture_output=True, timeout=600, check=False).returncode:
            draft.unlink(missing_ok=True)
            pytest.skip(f"Debian {suite} cannot be had here")
        draft.rename(made)
    return made
