"""What apply, undo and history do and say when all is well, and when somebody changed something meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from simulate import Seen, recording
from stage import FILE, MAPS, NEEDS, PIDS, staged

from torchtune_sys.cli import apply_run
from torchtune_sys.cli.planning import Planned
from torchtune_sys.errors import Terminated
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation.apply.session import ApplyRun
from torchtune_sys.rules import by_id

pytestmark = NEEDS

ROUND = f"""
tt undo 7 --yes; echo first
before > "$STAGE/1"
tt $APPLY
shows {FILE} {MAPS} {PIDS}
echo again; tt $APPLY
tt undo 2>&1; tt undo --yes
before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo same
tt undo --yes; tt undo 1 --yes; tt undo 7 --yes; tt history
"""


def test_there_and_back(tmp_path: Path) -> None:
    none, _, found = staged(tmp_path, ROUND).partition("first\n")
    assert "there is no run 7" in none and "rc 2" in none
    assert "Run 1: 2 cured" in found and "rc 0" in found
    assert f"{MAPS}: 65530|" in found and "vm.max_map_count = 65530|" in found
    again = found.partition("again\n")[2]
    assert "nothing to change\nrc 0\n" in again
    assert "there is no terminal to confirm at, so nothing was changed" in again and "rc 2" in again
    assert "Run 1 undone: everything is as it was (3 restored)\nrc 0\nsame\n" in again
    assert "Every run was undone already.\nrc 0\nRun 1 was undone already.\nrc 0\n" in again
    assert "there is no run 7" in again
    assert "undone: 2 changes: kernel.pid_max, vm.max_map_count" in again


def test_without_a_terminal_nothing_is_asked_and_nothing_done(tmp_path: Path) -> None:
    found = staged(
        tmp_path, 'tt apply --select max-map-count-low; tt apply --dry-run --select max-map-count-low; ls "$STAGE/state"'
    )
    first, _, second = found.partition("rc 2\n")
    assert "there is no terminal to confirm at, so nothing was changed\n  give --yes, or look with --dry-run\n" in first
    assert second.endswith("Nothing was changed (--dry-run).\nrc 0\n") and "+vm.max_map_count = 65530" in second


EDITS = {
    "a value": (f"echo 70000 > {MAPS}", f"shows {MAPS}", "70000|", "it holds 70000 now"),
    "a line of ours": (f"sed -i 's/^vm.*/&0/' {FILE}", f"grep -c 0$ {FILE}", "1", "it was changed since"),
    "a file that went": (f"rm {FILE}; touch {FILE}", f"stat -c %s {FILE}", "\n0\n", "it was changed since"),
    "a link": (
        f'cp {FILE} "$STAGE/other"; ln -sf "$STAGE/other" {FILE}',
        f'readlink {FILE}; wc -l < "$STAGE/other"',
        "/stage/other",
        "symbolic link",
    ),
    "a directory": (f"rm {FILE}; mkdir {FILE}", f"ls -d {FILE}", FILE, "not a regular file"),
}


@pytest.mark.parametrize("what", EDITS)
def test_what_somebody_changed_since_is_left_and_told(what: str, tmp_path: Path) -> None:
    change, look, shown, told = EDITS[what]
    found = staged(
        tmp_path, f"tt $APPLY; {change}; echo -- undo; tt undo --yes; {look}; echo -- again; tt undo 1 --yes; tt history"
    )
    undone, _, again = found.partition("-- undo\n")[2].partition("-- again\n")
    assert "Run 1 undone in part (2 restored)" in undone and "rc 1" in undone
    assert told in " ".join(undone.split()) and shown in undone
    assert "everything is as it was" not in again  # it still is not
    assert "undone (but what was changed since: " in " ".join(again.split())


def test_put_right_by_hand_the_rest_can_be_undone(tmp_path: Path) -> None:
    found = staged(tmp_path, f"tt $APPLY; echo 70000 > {MAPS}; tt undo --yes; echo 65530 > {MAPS}; tt undo 1 --yes; shows {MAPS}")
    assert found.endswith(f"Run 1 undone: everything is as it was (1 restored)\nrc 0\n{MAPS}: 3000|\n")


def test_mode_owner_attributes_of_a_file_that_was_there(tmp_path: Path) -> None:
    script = f"""
    printf 'by hand, no newline' > {FILE}; chmod 640 {FILE}; chown 7:8 {FILE}
    "$PYTHON" -c 'import os; os.setxattr("{FILE}", "trusted.x", b"1")'
    look() {{ "$PYTHON" -c 'import os; s = os.stat("{FILE}"); print(oct(s.st_mode), s.st_uid, s.st_gid, os.getxattr("{FILE}", "trusted.x"))'
              cat {FILE}; echo; }}
    look; tt $APPLY; chmod 600 {FILE}; tt undo --yes; echo -- now; look
    """
    found = staged(tmp_path, script)
    assert "0o100640 7 8 b'1'\nby hand, no newline\n" in found.partition("-- now\n")[2]


TWO = "tt apply --yes --select max-map-count-low; tt apply --yes --select task-table-small"


def test_the_earlier_of_two_runs(tmp_path: Path) -> None:
    found = staged(
        tmp_path,
        f"before > $STAGE/1; {TWO}; echo -- 1; tt undo 1 --yes; shows {MAPS} {PIDS}; tt undo 2 --yes; tt undo 1 --yes; before",
    )
    _, _, undo = found.partition("-- 1\n")
    assert f"run 2 changed {FILE} after run 1, so nothing was undone" in undo and "torchtune-sys undo 2 undoes that first" in undo
    assert f"rc 1\n{MAPS}: 65530|\n{PIDS}: 4194304|\n" in undo
    assert undo.count("everything is as it was") == 2 and undo.endswith("\n3000\n2000\n")


def test_all_runs_at_once(tmp_path: Path) -> None:
    found = staged(
        tmp_path, f'before > "$STAGE/1"; {TWO}; tt undo --all --yes; before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo same'
    )
    assert found.count("everything is as it was") == 2 and found.endswith("rc 0\nsame\n")


OF_SWAP = """
echo 60 > "$STAGE/swap"; mount --bind "$STAGE/swap" /proc/sys/vm/swappiness
printf 'Filename Type Size Used Priority\\n/dev/sda2 partition 999999 0 -2\\n' > "$STAGE/swaps"; mount --bind "$STAGE/swaps" /proc/swaps
printf '[rules.swappiness-high]\\nmax = 5\\n' > "$STAGE/lower.toml"
tt apply --yes --select swappiness-high; tt apply --yes --select swappiness-high --config "$STAGE/lower.toml"
"""
RAISED = f"tt apply --yes --select max-map-count-low; echo 2000 > {MAPS}; tt apply --yes --select max-map-count-low"


@pytest.mark.parametrize(("two", "kept"), [(OF_SWAP, ()), (RAISED, (MAPS,))])
def test_what_undoing_all_will_do_is_foretold(two: str, kept: tuple[str, ...], tmp_path: Path) -> None:
    """Each run was held against the host as it is, not as it will be once the later runs are undone."""
    found = staged(
        tmp_path, f"{two}\necho -- dry; tt undo --all --dry-run --format json; echo -- real; tt undo --all --yes --format json"
    )
    dry, _, real = found.partition("-- dry\n")[2].partition("-- real\n")
    assert dry.rpartition("rc")[0] == real.rpartition("rc")[0]
    assert real.endswith(f"rc {len(kept)}\n") and real.count('"state": "left"') == len(kept)


def test_only_one_at_a_time(tmp_path: Path) -> None:
    hold = 'exec 9> "$STAGE/state/lock"; flock -x 9'
    script = f"""
    tt apply --yes --select max-map-count-low
    ({hold}; printf 4242 > "$STAGE/state/lock"; touch "$STAGE/held"; sleep 4) &
    while [ ! -e "$STAGE/held" ]; do sleep 0.1; done
    echo -- busy; tt apply --yes --select task-table-small; tt undo --yes; shows {MAPS} {PIDS}
    echo -- waits; tt undo --yes --wait 20
    """
    found = staged(tmp_path, script)
    busy, _, waits = found.partition("-- busy\n")[2].partition("-- waits\n")
    assert busy.count("process 4242 is changing this host\n  wait for it, or give --wait SECONDS\nrc 1\n") == 2
    assert f"{MAPS}: 65530|\n{PIDS}: 2000|\n" in busy
    assert "everything is as it was" in waits and "rc 0" in waits


def test_others_than_root_are_told_so(tmp_path: Path) -> None:
    script = """
    chmod 755 "$STAGE" "$STAGE/.." 2>/dev/null
    other() { setpriv --reuid 65534 --regid 65534 --clear-groups "$PYTHON" -m torchtune_sys "$@"; echo "rc $?"; }
    other apply --yes --select max-map-count-low; other undo --yes; tt $APPLY > /dev/null; chmod 700 "$STAGE/state"; other history
    """
    found = staged(tmp_path, script)
    if "rc 126" in found or "No module named" in found:
        pytest.skip("another user cannot run this interpreter")
    again = "run it again " + ("with sudo" if shutil.which("sudo") else "as root")
    assert f"changing this host needs root\n  {again}, or look with --dry-run\nrc 2\n" in found
    assert "undoing needs root" in found and f"Permission denied\n  {again}\nrc 3\n" in found


def test_only_names_of_rules(tmp_path: Path) -> None:
    found = staged(
        tmp_path, f"tt apply --yes --only max-map-count-low; shows {MAPS} {PIDS}; tt apply --yes --only max-map-cont-low"
    )
    assert f"{MAPS}: 65530|\n{PIDS}: 2000|\n" in found
    assert "did you mean max-map-count-low?\nrc 2\n" in found


@pytest.mark.parametrize("end", [MemoryError(), KeyboardInterrupt(), Terminated(15)])
def test_what_was_made_is_told_though_the_look_behind_it_ends_early(
    end: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_arguments: Any) -> Any:
        raise end

    plan = Plan(host="h", origin="live", changes=(mock.Mock(),), files=(), refused=(), by_hand=())
    stand_ins = {
        "is_root": lambda: True,
        "planned": lambda *_: mock.Mock(plan=plan),
        "_show": lambda *_, **_more: None,
        "require_output": lambda *_: None,
        "_run": lambda *_: ApplyRun(number=7, failed={}),
        "judged": ended,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(apply_run, name, stand_in)
    monkeypatch.setattr(apply_run.selection, "selected_changes", lambda *_: (plan, {}))
    monkeypatch.setattr(apply_run.selection, "not_made", lambda *_: False)
    monkeypatch.setattr(apply_run.journal, "numbers", lambda _folder: [])
    monkeypatch.setattr(apply_run.session, "made_before", lambda _boot: None)
    with pytest.raises(type(end)):
        apply_run.apply({"only": (), "dry_run": False, "prove": False, "format_": "text", "yes": True, "color": "never"})
    assert "torchtune-sys undo 7 takes it back" in capsys.readouterr().err


def test_what_could_not_be_judged_again_is_not_called_cured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = by_id()["max-map-count-low"]
    seen = Seen(recording("max-map-count-low.fail"), [rule])
    found = Planned(plan=seen.plan, context=seen.ground, seen=seen.facts, results=tuple(seen.results))
    late = Missing(Why.TIMEOUT, "sysctl", "not read within 8 s")
    again = (Result(rule=rule, verdict=Verdict.UNKNOWN, why_unknown=late),)
    monkeypatch.setattr(apply_run, "judged", lambda _options: (seen.facts, again, None))
    options = {"format_": "text", "color": "never", "only": ()}
    assert apply_run._tell(ApplyRun(number=1, failed={}), found, seen.plan, {}, options) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "1 failed" in said and "was made, but could not be checked again: max-map-count-low: " in said, said
