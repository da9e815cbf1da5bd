"""The committed documents say what the catalogue and the commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent


def gen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "torchtune_sys.gen", *arguments], capture_output=True, text=True, timeout=60)


def test_generated_files_are_current() -> None:
    found = gen("check", str(REPO))
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_stale_file_is_noticed_and_mended(tmp_path: Path) -> None:
    assert gen("check", str(tmp_path)).returncode == 1
    assert gen("write", str(tmp_path)).returncode == 0
    assert gen("check", str(tmp_path)).returncode == 0
    (tmp_path / "docs/rules.md").write_text("old")
    assert gen("check", str(tmp_path)).returncode == 1


def test_a_wrong_word_is_a_usage_error() -> None:
    assert gen("wrote").returncode == 2
