"""The documentation site is built without a warning: no page outside the navigation, no broken link, no missing heading."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs mkdocs-material (dependency group docs)"),
]


def build(config: Path, to: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(to)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_builds_and_has_what_lies_outside_docs(tmp_path: Path) -> None:
    done = build(REPO / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    for page in ("index", "rules/index", "rules/dev-shm-too-small", "causes/clock-skew", "repository/CONTRIBUTING"):
        assert (tmp_path / f"{page}.html").exists(), page
    assert "dev-shm-too-small" in (tmp_path / "search/search_index.json").read_text()


def test_a_broken_link_stops_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPO / "mkdocs.yml", tmp_path)
    shutil.copy(REPO / "scripts/site_links.py", tmp_path / "scripts")
    (tmp_path / "README.md").write_text("# One\n\n[there](OTHER.md) [gone](no-such-page.md) [no heading](OTHER.md#three)\n")
    (tmp_path / "OTHER.md").write_text("# Two\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-page.md" in done.stderr and "'#three'" in done.stderr.replace("repository/OTHER.md#three", "#three")
