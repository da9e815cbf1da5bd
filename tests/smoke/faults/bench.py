"""One run of the smoke test under a fault."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MARK = "TORCHTUNE_SYS_TEST_BENCH"
PATIENCE_S = 400


def torch_python() -> str:
    """An interpreter that has torch, as TORCHTUNE_SYS_TEST_TORCH names it; else the test is skipped."""
    wanted = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")
    if "/" not in wanted:
        pytest.skip("TORCHTUNE_SYS_TEST_TORCH names no Python with torch")
    return wanted


class NotHere(Exception):
    """This machine does not allow the fault."""


class Outcome(NamedTuple):
    rc: int
    report: dict[str, Any]
    errors: str
    """What the driver wrote on stderr."""
    left: list[str]
    """Processes of the run that outlive the driver."""
    seconds: float

    @property
    def verdicts(self) -> dict[str, str]:
        return {stage["stage"]: stage["verdict"] for stage in self.report.get("stages", ())}

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        return {stage["stage"]: stage for stage in self.report.get("stages", ())}

    @property
    def told(self) -> str:
        """The whole, for the message of a test that fails."""
        rows = [f"{s['verdict']:8}{s['stage']:20}{s['cause']:28}{s['seen']} {s['places']}" for s in self.report.get("stages", ())]
        return "\n".join(
            [f"status {self.rc}, {self.seconds:.1f} s", *rows, str(self.report.get("output", ""))[-3000:], self.errors[-2000:]]
        )


class Bench:
    """What a fault sets before the run."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self.mark = uuid.uuid4().hex
        self.before: list[str] = []
        """The command line that starts the driver; it ends in exec "$@" or the like."""
        self.options: list[str] = []
        self.closing = contextlib.ExitStack()
        self.watchers: list[Callable[[], None]] = []
        """Run beside it, each in a thread."""
        home = folder / "home"
        home.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "TORCHINDUCTOR_CACHE_DIR", "LANG") if name in os.environ}
        self.env = {**kept, MARK: self.mark, "HOME": str(home), "USER": "tester", "TMPDIR": str(folder)}

    def command(self, stages: str, ranks: int, format_: str = "json") -> list[str]:
        argv = [sys.executable, "-I", "-m", "torchtune_sys", "smoke", "--python", self.python, "--format", format_]
        argv += ["--nproc-per-node", str(ranks), "--no-proof", *self.options]
        return [*self.before, *argv, *(["--stages", stages] if stages else [])]

    def start(self, stages: str, ranks: int, format_: str = "json") -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(stages, ranks, format_),
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, stages: str, ranks: int) -> Outcome:
        began = time.monotonic()
        with self.closing:
            child = self.start(stages, ranks)
            threads = [threading.Thread(target=watcher, daemon=True) for watcher in self.watchers]
            for thread in threads:
                thread.start()
            try:
                output, errors = child.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGTERM)
                output, errors = child.communicate(timeout=20)
                errors += f"\nnot through after {PATIENCE_S} s"
            seconds = time.monotonic() - began
            for thread in threads:
                thread.join(5)
            left = [told for pid, told in self.processes().items() if pid != os.getpid()]
            self.end_all()
        try:
            report = json.loads(output)
        except ValueError:
            report = {}
            errors += output
        return Outcome(child.returncode, report, errors, left, seconds)

    def processes(self) -> dict[int, str]:
        """Those that carry this run's mark in their environment."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if not entry.name.isdigit() or f"{MARK}={self.mark}".encode() not in (entry / "environ").read_bytes():
                    continue
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found[int(entry.name)] = f"{entry.name} {state} {(entry / 'cmdline').read_text().replace(chr(0), ' ')[:200]}"
        return found

    def rank(self, number: int) -> int | None:
        """The process that is a rank: its parent is not."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if f"\0RANK={number}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes() and not self._is_rank(pid):
                    return pid
        return None

    def _is_rank(self, pid: int) -> bool:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return b"\0RANK=" in b"\0" + Path(f"/proc/{parent}/environ").read_bytes()

    def children(self, pid: int) -> list[int]:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def end_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
