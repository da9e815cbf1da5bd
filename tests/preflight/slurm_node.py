"""A node of a real Slurm with the hooks that are generated for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import alone_with

TOOL = Path(sys.executable).with_name("torchtune-sys")
MARKS = tuple(Path(f"/run/torchtune-sys-{kind}-here") for kind in ("drained", "known", "passes"))
"""What the hooks remember of the node, which is called ``here`` in each test's cluster."""


def generated(place: Path, piece: str, *words: str) -> Path:
    done = subprocess.run([TOOL, "generate", "slurm", piece, *words, "-o", place], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    place.chmod(0o755)
    return place


@contextmanager
def marks_alone() -> Iterator[None]:
    """One at a time on this machine: the clusters share what the hooks remember."""
    with alone_with(__file__):
        forget()  # what a run that was killed left
        try:
            yield
        finally:
            forget()


def forget() -> None:
    for mark in MARKS:
        mark.unlink(missing_ok=True)


class Cluster:
    """One node, a site check that fails while ``bad`` is there, and the hooks that were generated for it."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.root, self.env = root, env
        self.prolog, self.health = root / "prolog.sh", root / "health-check.sh"

    def run(self, *argv: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env, "SLURMD_NODENAME": "here"}
        return subprocess.run([*argv], env=env, cwd="/", capture_output=True, text=True, timeout=timeout_s)

    def checked(self, times: int) -> None:
        """Run the health check until it has reached so many verdicts: on a machine that is busy with other tests its time may be up before one."""
        for _ in range(3 * times):
            done = self.run(self.health)
            assert done.returncode == 0, done.stderr
            times -= "this node is not checked" not in done.stderr
            if not times:
                return

    def state(self) -> str:
        return self.run("scontrol", "show", "node", "here", "-o").stdout

    def until(self, words: str, is_there: bool = True, seconds: int = 30) -> str:
        """The node's state once it holds ``words`` (or no longer does)."""
        for _ in range(10 * seconds):
            if (words in self.state()) == is_there:
                break
            time.sleep(0.1)
        return self.state()

    def in_service(self) -> bool:
        return "DRAIN" not in self.state()
