"""Two users of this machine, made for the tests and removed after them, and what they lay out for root to step on."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SYSTEM_PYTHON = "/usr/bin/python3"
PROGRAM = [sys.executable, "-m", "torchtune_sys"]
_FACTS = "{'uid': os.geteuid(), 'groups': os.getgroups(), 'env': dict(os.environ), 'argv': sys.argv}"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to act as two other users")


class User:
    """A user with a home that everybody may enter."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home = name, home
        self.uid, self.gid = pwd.getpwnam(name)[2:4]

    def write(self, path: Path, text: str, mode: int = 0o644) -> Path:
        """A file of this user's, and the directories that lead to it."""
        made = []
        folder = path.parent
        while not folder.exists():
            made.append(folder)
            folder = folder.parent
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # the kernel lets not even root write to it in a directory like /tmp
        path.write_text(text)
        path.chmod(mode)
        for place in (*made, path):
            os.chown(place, self.uid, self.gid)
        return path

    def link(self, path: Path, target: str | Path) -> Path:
        path.symlink_to(target)
        os.chown(path, self.uid, self.gid, follow_symlinks=False)
        return path

    def venv(self, name: str = "venv") -> Path:
        """A virtual environment of this user's."""
        place = self.home / name
        self.write(place / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
        self.write(self.packages(place) / "README", "")
        self.write(place / "bin" / "activate", "")
        self.link(place / "bin" / "python3", SYSTEM_PYTHON)
        return place

    def packages(self, place: Path) -> Path:
        return place / "lib" / f"python{system_minor()}" / "site-packages"

    def run(self, argv: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        owner = {"user": self.uid, "group": self.gid, "extra_groups": [self.gid]}
        done: subprocess.CompletedProcess[str] = subprocess.run(argv, capture_output=True, text=True, **{**owner, **more})
        return done


class Scene:
    """Two users, and a directory where everybody may leave a mark that says who ran."""

    def __init__(self, folder: Path, alice: User, bob: User) -> None:
        self.folder, self.alice, self.bob = folder, alice, bob
        self.marks = folder / "marks"
        self.marks.mkdir(mode=0o777)
        self.marks.chmod(0o1777)

    def payload(self) -> str:
        """Python that leaves a mark with what it ran as."""
        return f"import os, sys; open({str(self.marks)!r} + '/%d-%d' % (os.geteuid(), os.getpid()), 'w').write(repr({_FACTS}))"

    def shell_payload(self) -> str:
        return f'#!/bin/sh\n: >"{self.marks}/$(/usr/bin/id -u)-$$"\n'

    def who_ran(self) -> set[int]:
        """The user ids that left a mark, which are taken away."""
        return {int(str(mark["uid"])) for mark in self.what_ran()}

    def what_ran(self) -> list[dict[str, object]]:
        found = []
        for path in sorted(self.marks.iterdir()):
            text = path.read_text()
            found.append(eval(text) if text else {"uid": int(path.name.partition("-")[0])})
            path.unlink()
        return found


def system_minor() -> str:
    """Of the Python that all users can start."""
    asked = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    return asked.stdout.strip()


def as_root(*arguments: str, cwd: str | Path = "/", timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
    """The program as root calls it, with variables that sudo -E would have kept."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SUDO_", "PYTHON", "LD_", "VIRTUAL_ENV"))}
    return subprocess.run([*PROGRAM, *arguments], cwd=cwd, env={**own, **env}, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="session")
def two_accounts() -> Iterator[tuple[Path, User, User]]:
    for tool in ("useradd", "userdel"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not os.path.exists(SYSTEM_PYTHON):
        pytest.skip(f"no {SYSTEM_PYTHON}, that two users could start")
    folder = Path(tempfile.mkdtemp(prefix="two-users-", dir="/var/tmp"))
    folder.chmod(0o755)
    names = [f"tts-{who}-{os.getpid()}" for who in ("alice", "bob")]
    _remove_left()
    try:
        for name in names:
            _retried(
                ["useradd", "--no-create-home", "--home-dir", str(folder / name), "--user-group", "--shell", "/bin/sh", name]
            )
        alice, bob = (User(name, folder / name) for name in names)
        yield folder, alice, bob
    finally:
        for name in names:
            with contextlib.suppress(KeyError):
                pwd.getpwnam(name)
                _retried(["userdel", "--force", name])
        shutil.rmtree(folder, ignore_errors=True)


_OF_A_RUN = re.compile(r"tts-(?:alice|bob)-([1-9][0-9]*)")


def _remove_left() -> None:
    """Remove the users, and their folders, of runs that were killed."""
    for entry in pwd.getpwall():
        made = _OF_A_RUN.fullmatch(entry.pw_name)
        if made is None or os.path.exists(f"/proc/{made[1]}"):
            continue
        folder = Path(entry.pw_dir).parent
        _retried(["userdel", "--force", entry.pw_name], gone_is_well=True)
        if folder.parent == Path("/var/tmp") and folder.name.startswith("two-users-"):
            shutil.rmtree(folder, ignore_errors=True)


def _retried(argv: list[str], *, gone_is_well: bool = False) -> None:
    """Another process may hold the lock of /etc/passwd, or have removed the user first."""
    deadline = time.monotonic() + 60
    while (done := subprocess.run(argv, capture_output=True, text=True)).returncode:
        if gone_is_well and "does not exist" in done.stderr:
            return
        if "lock" not in done.stderr or time.monotonic() > deadline:
            pytest.fail(f"{' '.join(argv)}: {done.stderr}")
        time.sleep(0.2)


@pytest.fixture
def scene(two_accounts: tuple[Path, User, User]) -> Iterator[Scene]:
    """Homes are empty at the start of each test."""
    folder, alice, bob = two_accounts
    stage = Path(tempfile.mkdtemp(dir=folder))
    stage.chmod(0o755)
    for user in (alice, bob):
        user.home.mkdir(mode=0o755)
        os.chown(user.home, user.uid, user.uid)
    yield Scene(stage, alice, bob)
    for place in (stage, alice.home, bob.home):
        shutil.rmtree(place)
