"""Two runs of pytest at once, as ``./run test`` starts them: whose words come when, which status counts, and that both end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "side_by_side.py"
YIELDS = "import os; assert os.nice(0) >= 10"
PLAIN = ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".")


def start(folder: Path, front: str, beside: str) -> subprocess.Popen[str]:
    for name, text in (("test_front.py", front), ("test_beside.py", beside)):
        (folder / name).write_text(f"import time, pathlib\ndef test_it():\n    {text}\n")
    run = [sys.executable, str(SCRIPT), *PLAIN, "test_front.py", "--beside", *PLAIN, "test_beside.py"]
    argv = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *run]  # as what a shell starts in the background
    return subprocess.Popen(
        argv,
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },  # four starts of pytest: reading its plugins takes most of them
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("front", "beside", "status"), [("pass", YIELDS, 0), ("assert 0", "pass", 1), ("pass", "assert 0", 1)])
def test_either_one_counts_and_the_last_line_is_pytest_s(front: str, beside: str, status: int, tmp_path: Path) -> None:
    child = start(tmp_path, front, beside)
    said = child.communicate(timeout=120)[0]
    closing = [line for line in said.splitlines() if line.startswith(("1 passed in ", "1 failed in "))]
    assert [line.split()[1] for line in closing] == ["failed" if text == "assert 0" else "passed" for text in (front, beside)]
    assert said.splitlines()[-1] == closing[-1] and child.returncode == status


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_both_end_when_it_is_interrupted(number: signal.Signals, status: int, tmp_path: Path) -> None:
    waits = "pathlib.Path('{0}').touch(); time.sleep(300)\n"
    child = start(tmp_path, waits.format("one"), waits.format("two"))
    until = time.monotonic() + 90
    while not ((tmp_path / "one").exists() and (tmp_path / "two").exists()) and time.monotonic() < until:
        time.sleep(0.05)
    child.send_signal(number)
    said = child.communicate(timeout=120)[0]
    assert said.count("KeyboardInterrupt") >= 2 and child.returncode == status, said
