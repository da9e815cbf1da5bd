"""Draw docs/terminal.svg: what the tool says of a recorded host, as a terminal shows it.

    python scripts/terminal_picture.py [RECORDING] > docs/terminal.svg

Every row is what the commands print; none is written by hand.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "tests" / "hosts" / "typical" / "azure-nd-h100.fabric-manager-not-running.json"
COMMANDS = (
    ("check -q --ignore advice", 20),
    ("plan", 20),
)
"""Arguments, and how many rows of the answer are shown."""
_COLUMNS = 88
_SIZE, _ROW, _MARGIN = 14, 19, 16
_ADVANCE = 8.43
"""Width of a character of the usual monospaced fonts at this size."""
_COLORS = {"": "#d8dee9", "1": "#ffffff", "2": "#8b95a7", "1;31": "#ff6b6b", "33": "#f2c14e", "36": "#6cc7e8", "32": "#8fce74"}
_GROUND, _PROMPT = "#1d2129", "#8fce74"


def main() -> int:
    recording = Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDING
    sys.stdout.write(picture([row for words, most in COMMANDS for row in shown(words, most, recording)]))
    return 0


def shown(words: str, most: int, recording: Path) -> list[str]:
    """The prompt and the first rows of the answer, with their colours."""
    argv = [sys.executable, "-m", "torchtune_sys", *words.split(), "--from", str(recording)]
    env = {**os.environ, "COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1"}
    rows = subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout.rstrip("\n").split("\n")
    more = ["\x1b[2m…\x1b[0m"] if len(rows) > most else []
    return [f"\x1b[prompt]$ \x1b[1mtorchtune-sys {words}\x1b[0m", *rows[:most], *more, ""]


def picture(rows: list[str]) -> str:
    width, height = round(_COLUMNS * _ADVANCE + 2 * _MARGIN), len(rows) * _ROW + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
        "<title>torchtune-sys check and plan on a recorded host with eight H100 GPUs</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{_GROUND}"/>',
        f'<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="{_SIZE}" xml:space="preserve">',
    ]
    for number, row in enumerate(rows):
        spans = "".join(spans_of(row))
        if spans:
            lines.append(f'<text x="{_MARGIN}" y="{_MARGIN + _SIZE + number * _ROW - 4}">{spans}</text>')
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def spans_of(row: str) -> list[str]:
    """A row's parts by colour, each begun at its own column, so that no font's width matters.

    >>> spans_of("\\x1b[32mok\\x1b[0m <b>")
    ['<tspan x="16.0" fill="#8fce74">ok</tspan>', '<tspan x="32.9" fill="#d8dee9"> &lt;b&gt;</tspan>']
    """
    found, column, color = [], 0, _COLORS[""]
    for code, text in re.findall(r"(?:\x1b\[([0-9;]*m|prompt\]))?([^\x1b]*)", row):
        if code == "prompt]":
            color = _PROMPT
        elif code:
            color = _COLORS.get(code[:-1].removeprefix("0"), _COLORS[""])
        if text:
            found.append(f'<tspan x="{_MARGIN + column * _ADVANCE:.1f}" fill="{color}">{html.escape(text)}</tspan>')
            column += len(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
