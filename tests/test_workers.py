"""``--workers``: tests collected once and run in forked processes end as in one process, also where a worker dies or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

TESTS = Path(__file__).parent
CONFTEST = """
import os, pathlib, pytest
HERE = pathlib.Path(__file__).parent
@pytest.fixture(scope="session")
def shared():
    (HERE / f"made-{os.getpid()}").touch(exist_ok=False)
    yield os.getpid()
    (HERE / f"ended-{os.getpid()}").touch()
"""
PLAIN = """
import os
def test_{name}(shared, tmp_path, capfd, record_property):
    record_property("pid", os.getpid())
    print("said {name}")
    assert capfd.readouterr().out == "said {name}\\n" and tmp_path.is_dir() and shared == os.getpid()
"""


def started(folder: Path, files: dict[str, str], *options: str) -> subprocess.Popen[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "workers", "-c", "/dev/null", "--rootdir", "."]
    argv = [
        sys.executable,
        "-m",
        "pytest",
        *words,
        f"--basetemp={folder / 'base'}",
        "--junit-xml=junit.xml",
        "--workers=2",
        *options,
    ]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_each_test_runs_once_and_is_told_by_the_first_process(tmp_path: Path) -> None:
    files = {name: PLAIN.format(name=name) for name in "abcdef"}
    files["again"] = "from pathlib import Path\ndef test_again():\n    p = Path('met')\n    p.exists() or p.touch() or 1 / 0\n"
    child = started(tmp_path, files, "--reruns=1")
    said = child.communicate(timeout=120)[0]
    assert child.returncode == 0 and "7 passed, 1 rerun" in said, said
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "junit.xml").getroot().iter("testcase")}
    assert len(cases) == 7
    pids = {each.get("value") for case in cases.values() for each in case.iter("property")}
    assert str(child.pid) not in pids
    assert {each.name for each in tmp_path.glob("made-*")} == {f"made-{pid}" for pid in pids}
    assert {each.name for each in tmp_path.glob("ended-*")} == {f"ended-{pid}" for pid in pids}


def test_a_worker_that_dies_fails_its_test_and_what_it_had_left(tmp_path: Path) -> None:
    dies = "import os\ndef test_before(): pass\ndef test_dies(): os._exit(3)\ndef test_after(): pass\n"
    child = started(tmp_path, {"a": dies, "b": PLAIN.format(name="b"), "c": "def test_wrong(): assert 1 == 2\n"})
    said = child.communicate(timeout=120)[0]
    assert child.returncode == 1 and "3 failed, 2 passed" in said, said
    assert "the process that ran this file ended with 3" in said and "assert 1 == 2" in said
    assert {line.split()[1] for line in said.splitlines() if line.startswith("FAILED")} == {
        "test_a.py::test_dies",
        "test_a.py::test_after",
        "test_c.py::test_wrong",
    }


def test_an_interrupt_ends_all_with_their_fixtures(tmp_path: Path) -> None:
    waits = "import time, pathlib\ndef test_it(shared):\n    pathlib.Path('{0}').touch()\n    time.sleep(300)\n"
    child = started(tmp_path, {"a": waits.format("one"), "b": waits.format("other")})
    until = time.monotonic() + 90
    while not ((tmp_path / "one").exists() and (tmp_path / "other").exists()):
        assert time.monotonic() < until
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=60)[0]
    assert child.returncode == 2 and "KeyboardInterrupt" in said, said
    assert len([*tmp_path.glob("ended-*")]) == 2
