"""What an option names may lie where nobody answers: a deadline, a sentence, and an end of the process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven import HOSTS, PROGRAM, environment
from silent_fuse import silent_fuse

RECORDED = str(HOSTS / "healthy.json")
CHANGED = str(HOSTS / "thp-never.fail.json")
"""One whose plan has a change that tuned makes."""
SHORT = (
    "import torchtune_sys.host.children.apart as a, torchtune_sys.host.files as f; a.TIMEOUT_S = 2.0; f._TIMEOUT_MS = 500\n"
    "import torchtune_sys.__main__ as m; m.main()"
)
"""The tool with a shorter patience where --timeout does not hold."""


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    with silent_fuse(tmp_path / "silent") as place:
        yield place


@pytest.mark.parametrize(
    "words",
    [
        "check --timeout 3 --from {}/host.json",
        "check --timeout 3 --from {}",
        "check --timeout 3 --root {}",
        "check --timeout 3 --python {}/bin/python3",
        pytest.param("plan --timeout 3 --from {}/host.json", marks=pytest.mark.exhaustive),
        pytest.param("generate script --timeout 3 --from {}/host.json", marks=pytest.mark.exhaustive),
        pytest.param("snapshot --timeout 3 --from {}/host.json", marks=pytest.mark.exhaustive),
    ],
)
def test_an_input_that_does_not_answer_costs_the_timeout(words: str, silent: Path) -> None:
    said, seconds, status = _timed([*PROGRAM, *words.format(silent).split()])
    # On a busy machine the parent's own deadline may be the first to end.
    assert (status, "no answer within" in said) == (2, True) or (status, "judged within 3 s" in said) == (3, True), (status, said)
    assert seconds < 60


@pytest.mark.parametrize(
    "words",
    [
        f"check --from {RECORDED} --config {{}}/config.toml",
        f"check --from {RECORDED} -o {{}}/report",
        "preflight --policy {}/policy.toml",
        f"compare {RECORDED} --golden {{}}/golden.json",
        pytest.param(f"compare {RECORDED} {{}}/other.json", marks=pytest.mark.exhaustive),
        pytest.param("record -o {}/host.json", marks=pytest.mark.exhaustive),
        pytest.param("smoke --list -o {}/list", marks=pytest.mark.exhaustive),
        pytest.param("generate systemd --unit train --output-dir {}/files", marks=pytest.mark.exhaustive),
        pytest.param(f"generate tuned --from {CHANGED} --output-dir {{}}/files", marks=pytest.mark.exhaustive),
        pytest.param("generate dockerfile --system debian-12 --gpu H100 -o {}/image", marks=pytest.mark.exhaustive),
    ],
)
def test_a_file_that_does_not_answer_has_a_deadline_of_its_own(words: str, silent: Path) -> None:
    said, seconds, status = _timed([PROGRAM[0], "-c", SHORT, *words.format(silent).split()])
    assert status in (2, 4) and "within" in said and "still answers" in said, (status, said)
    assert seconds < 120


def _timed(argv: list[str]) -> tuple[str, float, int]:
    began = time.monotonic()
    found = subprocess.run(argv, env=environment(None), capture_output=True, text=True, timeout=200)
    assert "Traceback" not in found.stderr
    return found.stderr, time.monotonic() - began, found.returncode


def test_waiting_for_who_reads_a_file_costs_no_processor_time() -> None:
    """The parent looked every five milliseconds whether its child was through."""
    code = (
        "import os, time\nfrom torchtune_sys.cli import watch\nlooks = []\nwait = os.waitpid\n"
        "os.waitpid = lambda *about: looks.append(1) or wait(*about)\n"
        "status = watch.run_limited(lambda: time.sleep(1) or os._exit(7), 30, lambda: -1)\nprint(status, len(looks))"
    )
    found = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    status, looks = map(int, found.stdout.split())
    assert status == 7
    assert looks < 20  # five a second, in case a person pastes
