"""The picture in the README is what the commands print for a recorded host."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "terminal_picture.py"


def _rows(svg: str) -> list[str]:
    ET.fromstring(svg)
    return [html.unescape(re.sub("<[^>]+>", "", row)) for row in svg.splitlines() if row.startswith("<text ")]


def test_it_shows_a_failing_report_and_a_plan_that_are_printed_today() -> None:
    drawn = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=True).stdout
    today, kept = _rows(drawn), _rows((ROOT / "docs" / "terminal.svg").read_text(encoding="utf-8"))
    told = "python scripts/terminal_picture.py > docs/terminal.svg"
    assert [row for row in kept if row.startswith("$ ")] == [
        "$ torchtune-sys check -q --ignore advice",
        "$ torchtune-sys plan",
    ], told
    for start in ("$ ", "error ", "safe "):
        assert [row for row in today if row.startswith(start)] == [row for row in kept if row.startswith(start)], told
    assert "docs/terminal.svg" in (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0]


def test_what_a_host_says_cannot_leave_its_row() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import terminal_picture
    finally:
        sys.path.pop(0)
    svg = terminal_picture.picture(['\x1b[1;31m<script>&"\x1b[0m x'])
    assert _rows(svg) == ['<script>&" x'] and "<script>" not in svg
