"""What an environment of another user's can do to root's process that started it, and what it can leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from two_users import Scene, as_root, needs_root

HOSTILE = Path(__file__).with_name("hostile_python.py")
OPENED = {"pipe", "socket", "/dev/null", "anon_inode", "/memfd"}
"""What a child is given to speak by, and the sealed script of the smoke test."""
WAYS = ("check -q", "check -q --live", "smoke --quick --device cpu --timeout 60")


def attacked(scene: Scene, way: str, command: str, timeout: float = 200) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Root's command with an environment of alice's that does this, and what it wrote down."""
    venv = scene.alice.venv()
    code = scene.alice.write(venv / "attack.py", HOSTILE.read_text())
    start = f"import sys; sys.argv_of_attack = ({way!r}, {str(scene.marks)!r}); exec(open({str(code)!r}).read(), {{'__name__': 'x'}})\n"
    scene.alice.write(scene.alice.packages(venv) / "attack.pth", start)
    done = as_root(*command.split(), "--python", str(venv), timeout=timeout)
    told = [line for path in sorted(scene.marks.iterdir()) for line in path.read_text().splitlines()]
    for path in scene.marks.iterdir():
        assert path.name.startswith(f"{scene.alice.uid}-"), "it ran as somebody else"
        path.unlink()
    return done, told


@needs_root
@pytest.mark.parametrize("command", WAYS)
def test_an_environment_reaches_nothing_of_the_process_that_started_it(scene: Scene, command: str) -> None:
    """Its memory, files, limits, priority and group, the terminal (TIOCSTI), and what it had open."""
    _, told = attacked(scene, "reach", command)
    assert "RAN" in told
    assert [line for line in told if line.startswith("GOT")] == []
    opened = {line.split(None, 2)[2].partition(":")[0] for line in told if line.startswith("FD")}
    hers = tuple(map(str, (scene.alice.home, scene.marks)))
    assert {place for place in opened if not place.startswith(hers)} <= OPENED, opened


@needs_root
@pytest.mark.parametrize("command", WAYS)
def test_nothing_of_another_user_s_outlives_the_command(scene: Scene, command: str) -> None:
    """Below a Prolog it would run outside every job: without its limits, after its end."""
    done, told = attacked(scene, "daemon", command)
    assert "internal error" not in done.stderr
    left = [int(line.split()[1]) for line in told if line.startswith("DAEMON")]
    assert left, told
    alive = [pid for pid in left if os.path.exists(f"/proc/{pid}")]
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert alive == []


@needs_root
@pytest.mark.long
@pytest.mark.parametrize("way", ["stop", "flood", "lines"])
def test_an_environment_that_stops_or_prints_without_end_holds_nobody(scene: Scene, way: str) -> None:
    started = time.monotonic()
    done, told = attacked(scene, way, "check -q --timeout 10")
    assert "RAN" in told and time.monotonic() - started < 60
    assert done.returncode in (0, 1, 3) and "internal error" not in done.stderr, done
