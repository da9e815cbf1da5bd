"""One host before and after ``apply``: what compare names is what apply told, and after ``undo`` nothing is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from stage import NEEDS, staged

pytestmark = NEEDS
SCRIPT = """
look() { "$PYTHON" -m torchtune_sys snapshot --compact -o "$TO/$1" || echo "look: rc $?"; }
TO=$(mktemp -d -p "$STAGE")
look yesterday
echo "<applied>"; "$PYTHON" -m torchtune_sys $APPLY --format json; echo "</applied>"
look today
echo "<changed>"; "$PYTHON" -m torchtune_sys compare "$TO/today" --before "$TO/yesterday" --format json; echo "rc $?"; echo "</changed>"
"$PYTHON" -m torchtune_sys undo --yes >/dev/null; look later
echo "<left>"; "$PYTHON" -m torchtune_sys compare "$TO/later" --before "$TO/yesterday" --format json; echo "rc $?"; echo "</left>"
"""


def part(said: str, name: str) -> tuple[dict[str, Any], str]:
    found = re.search(rf"<{name}>\n(.*?)\n(rc \d+\n)?</{name}>", said, re.DOTALL)
    assert found is not None, said
    return json.loads(found[1][found[1].index("{") :]), (found[2] or "").strip()


def test_what_differs_is_what_apply_told(tmp_path: Path) -> None:
    said = staged(tmp_path, SCRIPT)
    applied, _ = part(said, "applied")
    told = {change["key"] for change in applied["changes"] if change["state"] == "cured"}
    changed, status = part(said, "changed")
    keys = {re.sub(r"^sysctl\.settings\[([^\]]*)\].*", r"\1", item["fact"]) for item in changed["odd"]}
    assert told and keys == told
    assert status == "rc 1"
    assert {item["fact"].rpartition(".")[2] for item in changed["odd"] if "assignments" not in item["fact"]} == {"running"}
    left, status = part(said, "left")
    assert (left["odd"], status) == ([], "rc 0")
