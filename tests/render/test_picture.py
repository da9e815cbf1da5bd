"""The picture in the README is what the commands print for a recorded host."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from stage import can_mount, made_folder

ROOT = Path(__file__).resolve().parents[2]
REMEDY = ROOT / "docs" / "remedy.svg"
SCRIPT = ROOT / "scripts" / "terminal_picture.py"


def _rows(svg: str) -> list[str]:
    ET.fromstring(svg)
    return [" ".join(html.unescape(re.sub("<[^>]+>", " ", row)).split()) for row in svg.splitlines() if row.startswith("<text ")]


def test_it_shows_a_failing_report_and_a_plan_that_are_printed_today() -> None:
    drawn = subprocess.run([sys.executable, str(SCRIPT), "check"], capture_output=True, text=True, timeout=120, check=True).stdout
    today, kept = _rows(drawn), _rows((ROOT / "docs" / "terminal.svg").read_text(encoding="utf-8"))
    told = "python scripts/terminal_picture.py check > docs/terminal.svg"
    assert [row for row in kept if row.startswith("$ ")] == [
        "$ torchtune-sys check -q --ignore advice",
        "$ torchtune-sys plan",
    ], told
    for start in ("$ ", "error ", "safe "):
        assert [row for row in today if row.startswith(start)] == [row for row in kept if row.startswith(start)], told
    assert "docs/terminal.svg" in (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0]


@pytest.mark.skipif(not can_mount() or not made_folder(), reason="needs root that may mount")
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2)")
def test_the_second_picture_shows_a_change_that_is_made_and_undone() -> None:
    drawn = subprocess.run(
        [sys.executable, str(SCRIPT), "remedy"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    today, kept = ([row for row in _rows(text) if "Run 1 of " not in row] for text in (drawn, REMEDY.read_text(encoding="utf-8")))
    assert today == kept, "python scripts/terminal_picture.py remedy > docs/remedy.svg"
    assert any("everything is as it was" in row for row in kept)


def test_what_a_host_says_cannot_leave_its_row() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import terminal_picture
    finally:
        sys.path.pop(0)
    svg = terminal_picture.picture(['\x1b[1;31m<script>&"\x1b[0m x'])
    assert _rows(svg) == ['<script>&" x'] and "<script>" not in svg
