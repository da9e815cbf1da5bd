"""The controlling side of real plays: the collection as it is built and installed, an inventory, ansible-playbook, and what became of each task."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ssh_machines import SSH_OPTIONS, Controller

COLLECTION = Path(__file__).resolve().parents[2] / "ansible"
PATIENCE_S = 900


def program(name: str) -> str:
    """A program of Ansible's, from the folder $TORCHTUNE_SYS_TEST_ANSIBLE or beside this interpreter, else on PATH. Skips the test where there is none."""
    places = [os.environ.get("TORCHTUNE_SYS_TEST_ANSIBLE", ""), os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join(filter(None, places)))
    if found is None:
        pytest.skip(f"{name} is not installed: pip install ansible-core ansible-lint yamllint")
    return found


@dataclass(frozen=True)
class Task:
    """What became of a task on one host."""

    host: str
    task: str
    action: str
    state: str
    result: dict[str, Any]


@dataclass
class Played:
    """What a run of ansible-playbook said and did."""

    status: int
    output: str
    tasks: list[Task]

    def of(self, host: str, action: str) -> list[dict[str, Any]]:
        """The results of a module on a host, by its last name, in the order of the tasks."""
        return [one.result for one in self.tasks if one.host == host and one.action.rpartition(".")[2] == action]

    def changed(self, host: str) -> list[str]:
        """Names of the tasks that changed something there."""
        return [one.task for one in self.tasks if one.host == host and one.result.get("changed") and one.state == "ok"]

    def failed(self, host: str) -> list[Task]:
        return [one for one in self.tasks if one.host == host and one.state in ("failed", "unreachable")]


@dataclass
class Plays:
    """Starts ansible-playbook where the machines are, with the collection from a place of its own."""

    work: Path
    inventory: Mapping[str, Mapping[str, Any]]
    controller: Controller | None = None
    env: dict[str, str] = field(default_factory=dict)

    def play(self, playbook: str | Sequence[Mapping[str, Any]], *options: str, **variables: Any) -> Played:
        """Run a playbook, by name or given as plays, on all hosts of the inventory unless --limit says otherwise."""
        process, record = self.start(playbook, *options, **variables)
        try:
            output = process.communicate(timeout=PATIENCE_S)[0]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return Played(process.returncode, output, recorded(record))

    def start(
        self, playbook: str | Sequence[Mapping[str, Any]], *options: str, **variables: Any
    ) -> tuple[subprocess.Popen[str], Path]:
        folder = Path(tempfile.mkdtemp(dir=self.work, prefix="play-"))
        folder.joinpath("inventory.json").write_text(json.dumps({"all": {"hosts": self.inventory}}))
        folder.joinpath("variables.json").write_text(json.dumps(variables))
        if not isinstance(playbook, str):
            folder.joinpath("playbook.json").write_text(json.dumps(playbook))
            playbook = str(folder / "playbook.json")
        argv = [program("ansible-playbook"), "-i", str(folder / "inventory.json"), "-e", f"@{folder / 'variables.json'}"]
        argv += [*options, playbook]
        process = subprocess.Popen(
            self.controller.inside(*argv) if self.controller else argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=self.work,
            env={**surroundings(self.work), "ANSIBLE_RECORD": str(folder / "record"), **self.env},
        )
        return process, folder / "record"


def recorded(record: Path) -> list[Task]:
    with suppress(FileNotFoundError):
        return [Task(**json.loads(line)) for line in record.read_text().splitlines()]
    return []


def surroundings(work: Path) -> dict[str, str]:
    """An environment for Ansible's programs, in which only the collection below ``work`` is found."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    settings = work / "ansible.cfg"
    settings.write_text("[defaults]\n")
    sockets = work / "s"
    sockets.mkdir(exist_ok=True)
    return {
        **own,
        "ANSIBLE_CONFIG": str(settings),
        "ANSIBLE_HOME": str(work / "home"),
        "ANSIBLE_COLLECTIONS_PATH": str(work / "collections"),
        "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "record",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=10s " + " ".join(SSH_OPTIONS),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]),
    }


def installed(work: Path) -> Path:
    """Build the collection, and install it offline below ``work``, where nothing is yet."""
    done = galaxy(work, "build", str(COLLECTION), "--output-path", str(work))
    (built,) = work.glob("torchtune-sys-*.tar.gz")
    galaxy(work, "install", "--offline", "-p", str(work / "collections"), str(built))
    assert "WARNING" not in done
    return work / "collections/ansible_collections/torchtune/sys"


def galaxy(work: Path, *words: str) -> str:
    """Raises AssertionError."""
    argv = [program("ansible-galaxy"), "collection", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=surroundings(work), cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
