"""Every recorded host that has something to change, laid out as a tree: tuned by ``apply``, by the generated script and by the role, it holds the same, byte for byte."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from controller import Plays
from forked import in_child
from recorded_tool import LAID, main
from script_root import SYSTEMCTL, lay, may_mount, paths
from simulate import BY_SUBJECT, Recording, Seen, recording
from test_platform_plans import PLATFORMS

from conftest import HOSTS
from machines_libraries import with_libraries
from torchtune_sys.model import actions
from torchtune_sys.model.plan import FileLine, Value
from torchtune_sys.rules import by_id

pytestmark = [
    pytest.mark.long,
    pytest.mark.exhaustive,
    pytest.mark.skipif(not may_mount() or shutil.which("nsenter") is None, reason="needs root that may mount, and nsenter"),
]

RULES = by_id()
TOOL = Path(__file__).with_name("recorded_tool.py")
CLONE_NEWNS = 0x20000
"""sched.h: setns(2) into a mount namespace."""
OF_THIS_HOST = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "localtime")
"""What any program needs of /etc."""
SETUP = """
set -eu
for name in etc proc/sys sys run var/lib var/log; do mount --bind "$1/$name" "/$name"; done
for name in systemctl udevadm; do [ ! -e "/usr/bin/$name" ] || mount --bind "$1/stubs/$name" "/usr/bin/$name"; done
echo up
exec sleep 100000
"""
COMPARED = ("etc", "proc/sys", "sys", "run/units")


@dataclass
class Stage:
    """A host's tree in a mount namespace of its own, which a process that sleeps keeps."""

    folder: Path
    words: tuple[str, ...]
    """What of its findings is asked for."""
    before: dict[str, str]
    process: subprocess.Popen[str]

    def tool(self, *words: str) -> str:
        """What the tool says, in a child of this process that enters the namespace. Raises AssertionError where it does not answer; that not all is
        cured is no failure: a recording does not change."""
        said = self.folder / "said"

        def work() -> tuple[int, str]:
            with open(f"/proc/{self.process.pid}/ns/mnt") as place:
                assert ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
            with said.open("w") as file:
                os.dup2(file.fileno(), 1)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            status = main(str(self.folder / "recording.json"), *words)
            sys.stdout.flush()
            return status, ""

        status, _ = in_child(work)
        assert status in (0, 1, 5), (self.folder.name, status, said.read_text()[-2000:])
        return said.read_text()

    def bash(self, script: str, *words: str) -> None:
        """Raises AssertionError."""
        argv = ["nsenter", "-t", str(self.process.pid), "-m", "--", "bash", "-s", "--", *words]
        done = subprocess.run(argv, input=script, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode in (0, 1), (self.folder.name, done.stdout[-2000:], done.stderr[-2000:])

    def changed(self) -> dict[str, str]:
        now = state(self.folder)
        return {path: now.get(path, "gone") for path in {*now, *self.before} if now.get(path) != self.before.get(path)}


def recorded() -> Iterator[tuple[str, Recording, tuple[str, ...]]]:
    """Name, recording and what is asked for: of a failing host its own rule, of others everything."""
    for path in sorted(HOSTS.glob("*.fail*.json")):
        rule = path.stem.split(".")[0]
        if rule in RULES and (any(map(actions.doable, RULES[rule].fix)) or path.stem in BY_SUBJECT):
            yield path.stem, recording(path.stem), ("--select", rule)
    for path in sorted(HOSTS.glob("typical/*.json")):
        yield path.stem, recording(f"typical/{path.stem}"), ()
    for name, made in PLATFORMS.items():
        yield name, with_libraries(made()), ()


def with_changes() -> Iterator[tuple[str, Seen, tuple[str, ...]]]:
    for name, data, words in recorded():
        seen = Seen(data, [RULES[words[1]]] if words else list(RULES.values()))
        if any(isinstance(step, Value | FileLine) for change in seen.plan.changes for step in change.steps):
            yield name, seen, words


def state(folder: Path) -> dict[str, str]:
    found = {}
    for top in COMPARED:
        for place, _, names in os.walk(folder / top):
            for name in names:
                path = Path(place, name)
                about = path.lstat()
                digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                found[str(path.relative_to(folder))] = f"{about.st_mode:o} {about.st_uid}:{about.st_gid} {digest}"
    return found


class Tree:
    """Where tests/render/generate/script_root.py lays values."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, place: str, content: str, mode: int = 0o644) -> None:
        path = self.folder / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)


def laid(folder: Path, seen: Seen) -> None:
    tree = Tree(folder)
    for name in ("etc", "proc/sys", "sys", "run/units", "run/systemd/system", "var/lib", "var/log"):
        (folder / name).mkdir(parents=True)
    for name in OF_THIS_HOST:
        if Path("/etc", name).is_file():
            shutil.copy(Path("/etc", name).resolve(), folder / "etc" / name)
    tree.put("/proc/sys/kernel/random/boot_id", Path("/proc/sys/kernel/random/boot_id").read_text())
    tree.put("/stubs/systemctl", SYSTEMCTL.replace("${3-}", "${!#}"), 0o755)
    tree.put("/stubs/udevadm", "#!/bin/sh\nexit 0\n", 0o755)
    lay(tree, seen, seen.plan.changes)  # type: ignore[arg-type]
    places = set()
    for change in seen.plan.changes:
        for step in change.steps:
            if isinstance(step, Value):
                places |= {*paths(seen, step), *filter(None, [step.counterpart])}
    for path, content in seen.ground.files.items():
        places.add(path)
        if isinstance(content, str):
            tree.put(path, content, 0o640)
    real = {str(found) for path in places if isinstance(found := seen.host.real(path), str)}
    recorded_ = {**seen.data, LAID: sorted({*places, *real})}
    (folder / "recording.json").write_text(json.dumps(recorded_))


@contextmanager
def stage(folder: Path, seen: Seen, words: tuple[str, ...]) -> Iterator[Stage]:
    laid(folder, seen)
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SETUP, "sh", str(folder)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        for name, argv in (("python", [sys.executable]), ("tool", [sys.executable, str(TOOL), str(folder / "recording.json")])):
            entered = ["nsenter", "-t", str(process.pid), "-m", "--"] if name == "python" else []
            (folder / name).write_text(f'#!/bin/sh\nexec {" ".join(entered + argv)} "$@"\n')
            (folder / name).chmod(0o755)
        yield Stage(folder, words, state(folder), process)
    finally:
        process.kill()
        process.communicate()


def by_apply(one: Stage) -> None:
    one.tool("apply", "--yes", "--unsafe", "--force", "--format", "json", *one.words)


def by_script(one: Stage) -> None:
    one.bash(one.tool("generate", "script", "--unsafe", *one.words), "--force")


def by_role(stages: dict[str, Stage], work: Path) -> None:
    """One play over all of them: each is a host of the inventory whose Python is started in its namespace."""
    hosts = {
        name: {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": str(one.folder / "python"),
            "torchtune_sys_path": str(one.folder / "tool"),
            "torchtune_sys_select": list(one.words[1:]),
        }
        for name, one in stages.items()
    }
    role = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "apply"}}
    plays = Plays(work, hosts, env={"ANSIBLE_FORKS": "2"})
    more = {"torchtune_sys_unsafe": True, "torchtune_sys_force": True, "torchtune_sys_local_facts": False}
    played = plays.play([{"hosts": "all", "gather_facts": False, "tasks": [role]}], **more)
    asked = {name: played.of(name, "torchtune_apply") for name in stages}
    assert [name for name, results in asked.items() if not results or "changes" not in results[0]] == [], played.output[-3000:]


def test_apply_script_and_role_leave_the_same(work: Path) -> None:
    found = list(with_changes())
    left: dict[str, dict[str, dict[str, str]]] = {}
    for way in ("apply", "script", "role"):
        with ExitStack() as stack:
            folder = work / way
            stages = {name: stack.enter_context(stage(folder / name, seen, words)) for name, seen, words in found}
            if way == "role":
                by_role(stages, work)
            for one in stages.values() if way != "role" else ():
                {"apply": by_apply, "script": by_script}[way](one)
            left[way] = {name: one.changed() for name, one in stages.items()}
        shutil.rmtree(folder)
    files = sum(len(changed) for changed in left["apply"].values())
    own = {path for changed in left["apply"].values() for path in changed if path.startswith("etc/")}
    print(
        f"{len(found)} hosts, {files} files and values that apply, script and role leave alike; below /etc: {' '.join(sorted(own))}"
    )
    assert [name for name, changed in left["apply"].items() if not changed] == []
    wrong = {
        f"{way} {name}": differences
        for way in ("script", "role")
        for name, changed in left["apply"].items()
        if (differences := differing(changed, left[way][name]))
    }
    assert wrong == {}
    assert len(found) >= 60


def differing(one: dict[str, str], other: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {path: (one.get(path), other.get(path)) for path in {*one, *other} if one.get(path) != other.get(path)}
