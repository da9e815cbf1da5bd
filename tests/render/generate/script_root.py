"""A root directory that holds bash and a few programs of coreutils, to run generated scripts in: no Python, no awk, no /proc of its own.

The values and files of a recorded host are plain files there. ``systemctl`` is a stand-in that remembers.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from simulate import Seen

from torchtune_sys.model.plan import Change, Plan, Unit, Value
from torchtune_sys.model.values import Missing

PROGRAMS = ("cat", "chmod", "chown", "cp", "ln", "mkdir", "mv", "readlink", "rm", "rmdir", "sha256sum", "sort", "stat", "sync")
"""All of coreutils that the scripts may use; ``bash`` comes beside them: TORCHTUNE_SYS_TEST_BASH names another version's program."""
SYSTEMCTL = """#!/bin/bash
unit=${3-}
mkdir -p /run/units
case $1 in
is-enabled) [[ -e /run/units/${unit}.enabled ]] && echo enabled || { echo disabled; exit 1; } ;;
is-active) [[ -e /run/units/${unit}.active ]] && echo active || { echo inactive; exit 3; } ;;
enable) : >"/run/units/${unit}.enabled" ;;
disable) rm -f "/run/units/${unit}.enabled" ;;
start) : >"/run/units/${unit}.active" ;;
stop) rm -f "/run/units/${unit}.active" ;;
*) echo "$*" >>/run/systemctl ;;
esac
"""


@cache
def _parts(programs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """What is copied: each program and the libraries that it loads, with the place in the root."""
    found: dict[str, str] = {}
    for name in programs:
        program = shutil.which(name, path="/usr/bin:/bin")
        if name == "bash":
            program = os.environ.get("TORCHTUNE_SYS_TEST_BASH", program)
        assert program is not None, name
        found[f"bin/{name}"] = program
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], capture_output=True, text=True).stdout):
            found[library.lstrip("/")] = library
    return tuple(found.items())


class Root:
    """One such root in ``folder``, with ``more`` programs; ``archive`` is a whole system to unpack instead of the few programs."""

    def __init__(self, folder: Path, archive: Path | None = None, more: tuple[str, ...] = ()) -> None:
        self.folder = folder
        if archive is not None:
            subprocess.run(["tar", "-C", str(folder), "-xf", str(archive)], check=True)
        for place, source in () if archive else _parts(("bash", *PROGRAMS, *more)):
            self.path(place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, self.path(place))
        for name in ("dev", "etc", "proc", "sys", "tmp", "run/units", "var/lib", "var/log"):
            self.path(name).mkdir(parents=True, exist_ok=True)
        if not self.path("dev/null").exists():
            self.path("dev/null").touch()
        self.put("/bin/systemctl", SYSTEMCTL, 0o755)

    def path(self, place: str) -> Path:
        return self.folder / place.lstrip("/")

    def put(self, place: str, content: str | bytes, mode: int = 0o644) -> None:
        self.path(place).parent.mkdir(parents=True, exist_ok=True)
        self.path(place).write_bytes(content if isinstance(content, bytes) else content.encode())
        self.path(place).chmod(mode)

    def text(self, place: str) -> str:
        return self.path(place).read_text()

    def run(
        self, script: str, *args: str, bash: str = "/bin/bash", stage: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """The script through a pipe, as ``ssh host bash -s`` sends it; ``stage`` is a shell command that mounts over the root first."""
        argv = ["/usr/sbin/chroot", str(self.folder), bash, "-s", "--", *args]
        if stage:
            argv = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{stage}; exec "$@"', "sh", *argv]
        return subprocess.run(
            argv,
            input=script,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={"PATH": "/bin" if not stage else os.environ["PATH"], **env},
            timeout=60,
            check=False,
            start_new_session=True,
        )

    def state(self) -> dict[str, str]:
        """Everything but what logs and programs are: content, mode, owner, attributes, links."""
        found = {}
        for top in ("etc", "proc", "sys", "run/units", "var/lib"):
            for folder, folders, files in os.walk(self.path(top)):
                for name in (*folders, *files):
                    found[os.path.relpath(f"{folder}/{name}", self.folder)] = _state(f"{folder}/{name}")
        return found


def _state(path: str) -> str:
    about = os.lstat(path)
    if os.path.islink(path):
        return os.readlink(path)
    attributes = {name: os.getxattr(path, name).hex() for name in os.listxattr(path)}
    content = "" if os.path.isdir(path) else hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return f"{about.st_mode:o} {about.st_uid}:{about.st_gid} {attributes} {content}"


def may_mount() -> bool:
    return os.geteuid() == 0 and not subprocess.run(("unshare", "--mount", "true"), capture_output=True, check=False).returncode


def lay(root: Root, seen: Seen, changes: Iterable[Change]) -> None:
    """The values that the changes look at, as the recording has them."""
    for change in changes:
        for step in change.steps:
            if isinstance(step, Value):
                for path in (*paths(seen, step), *([step.counterpart] if step.counterpart else [])):
                    if not isinstance(seen.host.text(path), Missing):
                        root.put(path, " ".join(held(str(seen.host.text(path))).split()) + "\n")


def paths(seen: Seen, step: Value) -> list[str]:
    """The files that a step means on that host."""
    return seen.value_paths(step) if step.is_pattern else [step.path]


def held(text: str) -> str:
    """Of a file that offers a choice, what is chosen: a plain file could not show it otherwise."""
    chosen = re.search(r"\[(.*?)\]", text)
    return chosen[1] if chosen else text


def done(root: Root, seen: Seen, changes: Iterable[Change]) -> list[str]:
    """What is not as the changes want it."""
    wrong = []
    for change in changes:
        for step in change.steps:
            if isinstance(step, Value):
                wrong += [p for p in paths(seen, step) if root.text(p).split() != step.value.split()]
            elif isinstance(step, Unit):
                states = [root.path(f"/run/units/{step.unit}.{what}").exists() for what in ("enabled", "active")]
                wrong += [step.unit] if states != [step.enabled] * 2 else []
    return wrong


def settle(root: Root, plan: Plan, before: dict[str, str]) -> None:
    """What the kernel does and plain files do not: of a pair, the one that was not just written shows 0."""
    for change in plan.changes:
        for step in change.steps:
            if isinstance(step, Value) and step.counterpart:
                for one, other in ((step.path, step.counterpart), (step.counterpart, step.path)):
                    if root.text(one).strip() not in ("0", before[one]):
                        root.put(other, "0\n")


def pairs(root: Root, plan: Plan) -> dict[str, str]:
    """The values of such pairs now."""
    steps = [step for change in plan.changes for step in change.steps if isinstance(step, Value) and step.counterpart]
    return {path: root.text(path).strip() for step in steps for path in (step.path, step.counterpart)}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
needs_mounts = pytest.mark.skipif(not may_mount(), reason="needs root that may mount")
