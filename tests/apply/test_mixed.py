"""The generated script and ``apply`` on one host, in each order: what one did, the other finds done; each takes back its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from stage import FILE, MAPS, NEEDS, PIDS, staged

pytestmark = NEEDS
SCRIPTS = """
export TORCHTUNE_SYS_LOG="$STAGE/log"
one() { echo "-- script: $*"; bash "$STAGE/one.sh" "$@" 2>&1; echo "rc $?"; }
both() { echo "-- both: $*"; bash "$STAGE/both.sh" "$@" 2>&1; echo "rc $?"; }
$TOOL generate script --select max-map-count-low > "$STAGE/one.sh"
$TOOL generate script --select max-map-count-low,task-table-small > "$STAGE/both.sh"
same() { before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo same; }
before > "$STAGE/1"
"""


def test_the_script_then_apply_then_back(tmp_path: Path) -> None:
    found = staged(
        tmp_path,
        SCRIPTS + f'both; cp {FILE} "$STAGE/by-script"; echo -- apply; tt $APPLY; cmp {FILE} "$STAGE/by-script" && echo alike\n'
        "tt undo --yes; both --undo; same; tt history",
    )
    applied = found.partition("-- apply\n")[2]
    assert "nothing to change\nrc 0\nalike\n" in applied
    assert "there is nothing to undo.\nrc 0" in applied and "-- both: --undo\n" in applied and "rc 0\nsame\n" in applied


@pytest.mark.essential
def test_apply_then_the_script_then_back(tmp_path: Path) -> None:
    found = staged(tmp_path, SCRIPTS + "tt $APPLY; both; both --check; both --undo; shows " + MAPS + "; tt undo --yes; same")
    assert found.count("everything is as it should be\nrc 0\n") == 2
    assert f"nothing was applied here\nrc 0\n{MAPS}: 65530|" in found
    assert found.endswith("everything is as it was (3 restored)\nrc 0\nsame\n")


def test_each_made_a_part_and_the_last_is_taken_back_first(tmp_path: Path) -> None:
    found = staged(tmp_path, SCRIPTS + f"one; tt $APPLY; shows {FILE}; tt undo --yes; one --undo; same")
    assert "Run 1: 1 cured" in found and "vm.max_map_count = 65530|" in found
    assert "everything is as it was (2 restored)\nrc 0\n-- script: --undo\n" in found and found.endswith("rc 0\nsame\n")


def test_the_first_is_taken_back_first(tmp_path: Path) -> None:
    """Then the file is no longer what the script wrote: it says so, and loses nothing; what apply did is taken back all the same."""
    found = staged(tmp_path, SCRIPTS + f"printf '# mine\\n' > {FILE}; one; tt $APPLY; one --undo; shows {MAPS} {PIDS}; tt undo --yes; "
                   f'shows {PIDS}; cat "$STAGE/state/script/left-99-torchtune-sys.conf"')  # fmt: skip
    undone = found.partition("-- script: --undo\n")[2]
    assert f"failed: {FILE} was changed or removed since: left as it is" in undone
    assert f"rc 1\n{MAPS}: 3000|\n{PIDS}: 4194304|\n" in undone
    assert f"everything is as it was (2 restored)\nrc 0\n{PIDS}: 2000|\n# mine\n" in undone


@pytest.mark.parametrize("first", ["script", "apply"])
def test_not_both_at_once(first: str, tmp_path: Path) -> None:
    hold = {
        "script": 'ln -s "$$ $(cut -d" " -f22 /proc/$$/stat) $(cat /proc/sys/kernel/random/boot_id)" "$STAGE/state/script.lock"',
        "apply": 'cp "$(command -v sleep)" "$STAGE/torchtune-sys"; "$STAGE/torchtune-sys" 60 & echo $! > "$STAGE/state/lock"',
    }[first]
    end = "kill $!" if first == "apply" else ""
    other = "tt $APPLY; tt undo --yes" if first == "script" else "one; one --undo"
    ready = "tt apply --yes --select task-table-small >/dev/null;" if first == "script" else "one >/dev/null;"
    found = staged(tmp_path, SCRIPTS + f"{ready} {hold}; echo -- now; {other}; echo -- end; shows {MAPS} {PIDS}; {end}")
    now, _, end = found.partition("-- now\n")[2].partition("-- end\n")
    assert now.count("is changing this host") == 2 and now.count("rc 1\n") == 2
    assert end.startswith(f"{MAPS}: 3000|\n{PIDS}: 4194304|" if first == "script" else f"{MAPS}: 65530|\n{PIDS}: 2000|")
