"""A machine out of tune, the plays on it, and catching the tool in the middle of what it does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fleet
from controller import Played, Plays, recorded
from ssh_machines import Machine, until

APPLY, CHECK = "torchtune.sys.site", "torchtune.sys.check"


TOOL = "/usr/local/bin/torchtune-sys"


RUNS = "/var/lib/torchtune-sys"


PATIENCE_S = 600


PASSWORD = "correct horse"


TUNED = {
    "/proc/sys/kernel/pid_max": "4194304",
    "/proc/sys/vm/max_map_count": "65530",
    "/sys/kernel/mm/transparent_hugepage/enabled": "madvise",
}
"""What the values are then; threads-max depends on the memory."""


@dataclass
class Host:
    """A machine out of tune, and the plays on it."""

    plays: Plays
    machine: Machine
    bundle: Path

    def apply(self, *options: str, host: str = "host", **variables: Any) -> Played:
        return self.plays.play(
            APPLY, "--limit", f"{host},localhost", *options, **{"torchtune_sys_source": str(self.bundle), **variables}
        )

    def begin(self, *options: str, host: str = "host") -> Running:
        return Running(
            self, *self.plays.start(APPLY, "--limit", f"{host},localhost", *options, torchtune_sys_source=str(self.bundle))
        )

    def begin_to_catch(self, *options: str, host: str = "host") -> Running:
        """Whatever sshd starts is stopped at its sixth fsync: the tool has written its journal by then, and a value."""
        for process in sessions(self.machine):  # or an earlier play's connection would be taken
            os.kill(process, signal.SIGKILL)
        (listener,) = processes(self.machine, "/usr/sbin/sshd -D")
        log = self.plays.work / f"strace-{time.monotonic_ns()}"
        inject = ["-e", "trace=fsync", "-e", "inject=fsync:signal=SIGSTOP:when=6"]
        watch = subprocess.Popen(["strace", "-f", "-p", str(listener), *inject, "-o", str(log)], stderr=subprocess.DEVNULL)
        until(lambda: "TracerPid:\t0" not in status_of(listener), PATIENCE_S)
        running = self.begin(*options, host=host)
        running.watch, running.log = watch, log
        return running

    def check(self, **variables: Any) -> Played:
        """With the tool that lies there, whatever that is."""
        return self.plays.play(CHECK, "--limit", "host,localhost", torchtune_sys_report_fail=False, **variables)

    def history(self) -> list[str]:
        """The state of each run, the first one first."""
        return [one["state"] for one in json.loads(self.machine.sh(f"{TOOL} history --format json"))["runs"]]

    def values(self) -> dict[str, str]:
        return {path: self._text(path) for path in fleet.WRONG}

    def _text(self, path: str) -> str:
        return (self.machine.root / path.lstrip("/")).read_text().strip()

    def files(self) -> dict[str, str]:
        folders = (self.machine.root / folder for folder in ("etc/sysctl.d", "etc/tmpfiles.d"))
        return {f"{path.parent.name}/{path.name}": path.read_text() for folder in folders for path in folder.glob("*torchtune*")}

    def is_untouched(self) -> bool:
        return self.values() == fleet.WRONG and self.files() == {}

    def is_tuned(self) -> bool:
        values = self.values()
        threads = int(values["/proc/sys/kernel/threads-max"])
        return values | TUNED == values and threads > 5000 and len(self.files()) == 2


class Running:
    """A play that has begun."""

    def __init__(self, host: Host, process: subprocess.Popen[str], record: Path) -> None:
        self.host, self.process, self.record = host, process, record
        self.watch: subprocess.Popen[bytes] | None = None
        self.log = Path()

    def end(self) -> Played:
        output = self.process.communicate(timeout=PATIENCE_S)[0]
        return Played(self.process.returncode, output, recorded(self.record))

    def catch(self) -> int:
        """Wait until the tool has stopped between two steps of its run; its process."""
        assert self.watch is not None
        stopped = re.compile(r"^(\d+) +--- stopped by SIGSTOP", re.M)
        try:
            until(lambda: self.process.poll() is not None or stopped.search(self.log.read_text()), PATIENCE_S)
        finally:
            self.watch.terminate()
            self.watch.wait()
        found = stopped.search(self.log.read_text())
        assert found, f"the tool was not caught: {self.end().output}"
        tool = int(found[1])
        until(lambda: "\nState:\tT" in status_of(tool), PATIENCE_S)
        return tool


def status_of(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/status").read_text()
    return ""


def processes(machine: Machine, *words: str) -> list[int]:
    """Processes of the machine whose command line has all these words, parents first, by their numbers here."""
    found, todo = [], [machine.leader()]
    while todo:
        one = todo.pop(0)
        with suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                todo += [int(word) for word in Path(f"/proc/{one}/task/{task}/children").read_text().split()]
            argv = Path(f"/proc/{one}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if all(any(word == part or ("/" in word and word in part) for part in argv) for word in words):
                found.append(one)
    return found


def sessions(machine: Machine) -> list[int]:
    """The processes of sshd that hold root's connections, with a terminal or without one."""
    return [one for one in processes(machine) if Path(f"/proc/{one}/cmdline").read_bytes().startswith(b"sshd: root@")]


def mended(host: Host, name: str = "host", **variables: Any) -> Played:
    """Run once more; the host is as one that nothing happened to, a further run changes nothing, and undo gives what was before."""
    played = host.apply(host=name, **variables)
    assert played.status == 0, played.output
    assert host.is_tuned(), (host.values(), host.files(), played.output)
    again = host.apply(host=name, **variables)
    assert again.status == 0 and again.changed(name) == [], again.output
    host.machine.sh(f"{TOOL} undo --all --yes || true")
    values = host.values()
    assert values | {path: fleet.WRONG[path] for path in values if path.startswith("/proc")} == values, host.history()
    assert host.files() == {}
    print(f"history: {host.history()}")
    return played
