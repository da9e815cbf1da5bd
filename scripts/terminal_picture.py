"""Draw the README's pictures: what the commands print, as a terminal shows it.

    python scripts/terminal_picture.py check  [RECORDING] > docs/terminal.svg    # check and plan of a recorded host
    python scripts/terminal_picture.py remedy             > docs/remedy.svg      # plan, apply, undo; needs root, unshare and ip

Every row is what a command printed; none is written by hand. ``remedy`` changes nothing on this machine: in a mount namespace of its own the
recorded values of two failing hosts lie over /proc/sys, and an overlay over /etc.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDING = ROOT / "tests" / "hosts" / "typical" / "azure-nd-h100.fabric-manager-not-running.json"
COMMANDS = (
    ("check -q --ignore advice", 20),
    ("plan", 20),
)
"""Arguments, and how many rows of the answer are shown."""
CHANGED = ("max-map-count-low", "task-table-small")
"""Rules whose recorded failing values (tests/hosts/RULE.fail.json) ``remedy`` lays over /proc/sys."""
_SELECTED = f"--select {','.join(CHANGED)}"
REMEDY = (f"plan {_SELECTED}", f"apply --yes {_SELECTED}", "undo --yes")
_STAGE = """
set -eu
mount -t tmpfs none "$STAGE"
mkdir "$STAGE/upper" "$STAGE/work" "$STAGE/state" "$STAGE/values"
mount -t overlay o -o "lowerdir=/etc,upperdir=$STAGE/upper,workdir=$STAGE/work" /etc
mount --bind "$STAGE/state" /var/lib/torchtune-sys
ip link set lo up
number=0
while read -r path value; do
    number=$((number + 1))
    printf '%s\\n' "$value" >"$STAGE/values/$number"
    mount --bind "$STAGE/values/$number" "$path"
done <<VALUES
$VALUES
VALUES
"""
_COLUMNS = 88
_SIZE, _ROW, _MARGIN = 14, 19, 16
_ADVANCE = 8.43
"""Width of a character of the usual monospaced fonts at this size."""
_COLORS = {"": "#d8dee9", "1": "#ffffff", "2": "#9aa4b5", "1;31": "#ff6b6b", "33": "#f2c14e", "36": "#6cc7e8", "32": "#8fce74"}
_GROUND, _PROMPT = "#1d2129", "#8fce74"
_TITLES = {
    "check": "torchtune-sys check and plan on a recorded host with eight H100 GPUs",
    "remedy": "torchtune-sys plan, apply and undo of two kernel settings",
}


def main() -> int:
    which = sys.argv[1] if len(sys.argv) > 1 else "check"
    if which not in _TITLES:
        sys.stderr.write(__doc__ or "")
        return 2
    recording = Path(sys.argv[2]) if len(sys.argv) > 2 else RECORDING
    rows = remedy() if which == "remedy" else [row for words, most in COMMANDS for row in shown(words, most, recording)]
    sys.stdout.write(picture(rows, _TITLES[which]))
    return 0


def shown(words: str, most: int, recording: Path) -> list[str]:
    """Return the prompt and the first rows of the answer, with their colours."""
    argv = [sys.executable, "-m", "torchtune_sys", *words.split(), "--from", str(recording)]
    rows = subprocess.run(argv, env=_environment(), capture_output=True, text=True, check=False).stdout.rstrip("\n").split("\n")
    more = ["\x1b[2m…\x1b[0m"] if len(rows) > most else []
    return [_prompt(words), *rows[:most], *more, ""]


def remedy() -> list[str]:
    """Return what plan, apply and undo say where this machine has the recorded values; it needs root."""
    values = "\n".join(f"{path} {value}" for path, value in recorded_values().items())
    tool = f"{shlex.quote(sys.executable)} -m torchtune_sys"
    script = _STAGE + "".join(
        f"echo {shlex.quote(_prompt(words, root=True))}\n{tool} {words} || true\necho\n" for words in REMEDY
    )
    Path("/var/lib/torchtune-sys").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as stage, tempfile.TemporaryDirectory() as programs:
        Path(programs, "sudo").symlink_to("/bin/true")  # the same picture on a machine without it
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--uts", "--propagation", "private", "sh", "-c", f"hostname gpu-07\n{script}"],
            env={**_environment(), "STAGE": stage, "VALUES": values, "PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout.split("\n")


def recorded_values() -> dict[str, str]:
    """Return each file below /proc/sys that the recorded failing hosts hold, and its value."""
    found: dict[str, str] = {}
    for rule in CHANGED:
        files = json.loads((ROOT / "tests" / "hosts" / f"{rule}.fail.json").read_text())["files"]
        found |= {path: str(text).strip() for path, text in files.items() if path.startswith("/proc/sys/")}
    return found


def _prompt(words: str, *, root: bool = False) -> str:
    sudo = "sudo " if root and not words.startswith("plan") else ""
    return f"\x1b[prompt]$ \x1b[1m{sudo}torchtune-sys {words}\x1b[0m"


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1"}


def picture(rows: list[str], title: str = _TITLES["check"]) -> str:
    width, height = round(_COLUMNS * _ADVANCE + 2 * _MARGIN), len(rows) * _ROW + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{title}</title>",
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
    ['<tspan x="16.0" fill="#8fce74">ok</tspan>', '<tspan x="41.3" fill="#d8dee9">&lt;b&gt;</tspan>']
    """
    found, column, color = [], 0, _COLORS[""]
    for code, text in re.findall(r"(?:\x1b\[([0-9;]*m|prompt\]))?([^\x1b]*)", row):
        if code == "prompt]":
            color = _PROMPT
        elif code:
            color = _COLORS.get(code[:-1].removeprefix("0"), _COLORS[""])
        begun = column + len(text) - len(text.lstrip())  # browsers drop the blanks at the beginning of a row
        if text.strip():
            found.append(f'<tspan x="{_MARGIN + begun * _ADVANCE:.1f}" fill="{color}">{html.escape(text.strip())}</tspan>')
        column += len(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
