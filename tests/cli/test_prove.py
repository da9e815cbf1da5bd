"""``apply --prove``: a change after which a stage fails is told with the way back; one that harms nothing is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_apply import MAPS, can_mount, staged

from smoke.listening import listened, outside_loopback, traced

pytestmark = [
    pytest.mark.exhaustive,  # three whole tests, as dear as all other training of CI
    pytest.mark.skipif(not can_mount(), reason="needs root that may mount"),
    pytest.mark.skipif(
        "/" not in os.environ.get("TORCHTUNE_SYS_TEST_TORCH", ""), reason="TORCHTUNE_SYS_TEST_TORCH names no Python with torch"
    ),
]
HARM = f"""
# Something that keeps files small once the setting is what apply makes it: in the interpreter that trains only.
import resource, sys

if sys.executable == {os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")!r} and open({MAPS!r}).read().strip() == "65530":
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
"""


@pytest.mark.parametrize("harmful", [True, False])
def test_what_got_worse_is_told(tmp_path: Path, harmful: bool) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HARM if harmful else "")
    torch = os.environ["TORCHTUNE_SYS_TEST_TORCH"]
    trace = " ".join(traced(tmp_path / "listen"))
    done = staged(
        f"""
        export PYTHONPATH={tmp_path / "site"}
        {trace} {sys.executable} -m torchtune_sys apply --yes --prove --python {torch} --select max-map-count-low; echo "apply $?"
        cat {MAPS}
        $TOOL undo --yes; echo "undo $?"
        cat {MAPS}
        """,
        tmp_path / "stage",
        timeout_s=400,
    )
    assert "before the changes: " in done.stderr and "and again: " in done.stderr and "after the changes: " in done.stderr
    assert done.stdout.count("Run 1: 1 cured") == 1
    addresses = listened(tmp_path / "listen")
    assert addresses and outside_loopback(addresses) == []
    assert "65530\n" in done.stdout and done.stdout.endswith("undo 0\n3000\n")
    if harmful:
        assert "apply 1\n" in done.stdout
        assert "broken  " in done.stderr
        assert "torchtune-sys undo 1 undoes them." in done.stderr
    else:
        assert "broken" not in done.stderr
