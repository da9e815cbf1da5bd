"""plan, apply, undo and history as a person calls them, in a mount namespace where nothing reaches this machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import warm

STAGE = """
set -eu
mount -t tmpfs none "$1"
mkdir "$1"/upper "$1"/work "$1"/state
mount -t overlay o -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc
mkdir -p /var/lib/torchtune-sys
mount --bind "$1/state" /var/lib/torchtune-sys
echo 3000 >"$1/maps"
mount --bind "$1/maps" /proc/sys/vm/max_map_count
shift
set +e
"""
TOOL = warm.WORDS
OURS = "/etc/sysctl.d/99-torchtune-sys.conf"
MAPS = "/proc/sys/vm/max_map_count"


def can_mount() -> bool:
    return os.geteuid() == 0 and not subprocess.run(("unshare", "--mount", "true"), capture_output=True, check=False).returncode


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs root that may mount")


def staged(script: str, stage: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a shell script below the stage; ``$TOOL`` is the program."""
    stage.mkdir(exist_ok=True)
    command = ("unshare", "--mount", "--propagation", "private", "sh", "-c", STAGE + script, "sh", str(stage))
    env = {**os.environ, "TOOL": TOOL, "NO_COLOR": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env, timeout=timeout_s, check=False
    )


def test_nothing_is_changed_where_the_result_has_no_place(tmp_path: Path) -> None:
    done = staged(
        f"""
        $TOOL apply --yes --select max-map-count-low --format json >&-; echo "apply $?"; cat {MAPS}
        $TOOL apply --yes --select max-map-count-low >/dev/null; echo "again $?"
        $TOOL undo --yes --format json >&-; echo "undo $?"; cat {MAPS}
        """,
        tmp_path / "stage",
    )
    assert done.stdout.split("\n")[:5] == ["apply 4", "3000", "again 0", "undo 4", "65530"], done
    assert done.stderr.count("standard output is closed") == 2


def test_from_a_finding_to_a_cured_host_and_back(tmp_path: Path) -> None:
    done = staged(
        f"""
        $TOOL check --select max-map-count-low --fail-on warning >/dev/null && exit 90
        $TOOL plan --select max-map-count-low; echo "plan $?"
        $TOOL apply --yes --select max-map-count-low; echo "apply $?"
        cat {MAPS} {OURS}
        $TOOL apply --yes --select max-map-count-low; echo "again $?"
        $TOOL history --format json >"/tmp/history.$$"; cat "/tmp/history.$$"; rm "/tmp/history.$$"
        $TOOL undo --yes; echo "undo $?"
        cat {MAPS}; ls {OURS} || true
        $TOOL undo --yes; echo "nothing $?"
        """,
        tmp_path / "stage",
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "vm.max_map_count: 3000 → 65530" in said and "plan 1\n" in said
    assert "Run 1: 1 cured" in said and "apply 0\n" in said
    assert "65530\n# Made by torchtune-sys" in said and "vm.max_map_count = 65530" in said
    assert "nothing to change\nagain 0\n" in said.replace("vm: ", "").replace(f"{os.uname().nodename}: ", "")
    runs = json.loads(said[said.index('{\n  "runs"') if '{\n  "runs"' in said else said.index("{\n") : said.rindex("}\n") + 2])[
        "runs"
    ]
    assert [(run["run"], run["state"], run["changes"]) for run in runs] == [(1, "applied", ["vm.max_map_count"])]
    assert "Run 1 undone: everything is as it was" in said and "undo 0\n3000\n" in said
    assert "Every run was undone already.\nnothing 0" in said


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ("", 2, "there is no terminal to confirm at, so nothing was changed"),
        ("--dry-run", 0, "Nothing was changed (--dry-run)."),
        ("--yes --only max-map-count-lo", 2, "did you mean max-map-count-low?"),
        ("--yes --only swappiness-high", 0, "nothing to change"),
        ("--from x", 2, "no such option --from"),
    ],
)
def test_what_changes_nothing(options: str, status: int, words: str, tmp_path: Path) -> None:
    done = staged(
        f"$TOOL apply --select max-map-count-low {options}; echo status $?; cat {MAPS}; ls {OURS} || true", tmp_path / "stage"
    )
    assert words in done.stdout + done.stderr
    assert f"status {status}\n3000\n" in done.stdout and "No such file" in done.stderr


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (f"mkdir {OURS}", f"not made: vm.max_map_count: {OURS}"),
        ("mount -o remount,ro /etc", "not made: vm.max_map_count: the image (/etc is read-only) owns"),
        ("mount --bind /dev/null /proc/sys/vm/max_map_count", "not made: max-map-count-low: could not be checked: "),
    ],
)
def test_a_named_rule_that_is_refused_is_said_and_ends_with_1(before: str, words: str, tmp_path: Path) -> None:
    script = (
        f"{before}; for how in --yes --dry-run; do $TOOL apply $how --only max-map-count-low; echo status $?; done; cat {MAPS}"
    )
    done = staged(script, tmp_path / "stage")
    assert words in done.stderr and done.stdout.count("status 1\n") == 1 and done.stdout.count("status 0\n") == 1
    assert done.stdout.endswith("3000\n") or "null" in before


def test_what_is_refused_is_not_all_done(tmp_path: Path) -> None:
    """Also where nobody named its rule."""
    step = "$TOOL apply --yes --select max-map-count-low; echo status $?"
    done = staged(f"mkdir {OURS}; {step}; rmdir {OURS}; {step}", tmp_path / "stage")
    assert "not made: what is refused above" in done.stderr
    assert done.stdout.count("status 1\n") == 1 and done.stdout.endswith("status 0\n")


def test_what_somebody_else_did_is_entered_and_named_by_undo(tmp_path: Path) -> None:
    said = staged(
        """
        $TOOL note "package numactl installed"       # no run is open: one of its own
        $TOOL apply --yes --select max-map-count-low >/dev/null
        $TOOL note "slurmd restarted" "slurmd restarted" --run 2
        $TOOL note "host rebooted"                   # the last one that is open
        $TOOL note --run 7 nothing 2>&1
        $TOOL history
        $TOOL undo --all --yes; echo "rc $?"
        $TOOL undo --all --yes; echo "rc $?"
        $TOOL history --format json
        """,
        tmp_path / "stage",
    ).stdout
    assert "Entered in run 1.\nEntered in run 2.\nEntered in run 2.\n" in said
    assert "there is no run 7" in said
    history, _, rest = " ".join(said.split()).partition("Run 2 of ")
    assert "applied: done by others: package numactl installed" in history
    assert "done by others: slurmd restarted, host rebooted" in history
    undone, _, again = rest.partition("rc 1 Every run was undone already. rc 0")
    for text in ("slurmd restarted", "host rebooted", "package numactl installed"):
        assert f"{text}: not undone: it was not done by torchtune-sys" in undone
    runs = json.loads(again)["runs"]
    assert [run["elsewhere"] for run in runs] == [["package numactl installed"], ["slurmd restarted", "host rebooted"]]
    assert [run["state"] for run in runs] == ["undone", "undone"]


@pytest.mark.parametrize("how", ["--yes", "--dry-run"])
def test_what_somebody_else_did_is_left_in_the_json_of_undo(tmp_path: Path, how: str) -> None:
    said = staged(
        f"""
        $TOOL apply --yes --select max-map-count-low >/dev/null
        $TOOL note "slurmd restarted"
        echo; $TOOL undo {how} --format json
        """,
        tmp_path / "stage",
    ).stdout
    changes = json.loads(said[said.index("\n{") :])["changes"]
    assert [(one["key"], one["state"]) for one in changes] == [("vm.max_map_count", "restored"), ("slurmd restarted", "left")]


def test_an_interrupted_run_must_be_undone_first(tmp_path: Path) -> None:
    done = staged(
        f"""
        $TOOL apply --yes --select max-map-count-low >/dev/null
        journal=/var/lib/torchtune-sys/0001.journal
        sed -i '$d' "$journal"  # as if the process had been killed before its last line
        $TOOL apply --yes --select max-map-count-low; echo "nothing to do $?"
        echo 3000 >{MAPS}
        $TOOL apply --yes --select max-map-count-low; echo "refused $?"
        echo 65530 >{MAPS}
        $TOOL undo --yes; echo "undo $?"
        cat {MAPS}
        """,
        tmp_path / "stage",
    )
    assert "nothing to do 0" in done.stdout
    assert (
        "run 1 was interrupted" in done.stderr
        and "undo it first: torchtune-sys undo 1" in done.stderr
        and "refused 1" in done.stdout
    )
    assert "undo 0\n3000\n" in done.stdout


def test_a_damaged_journal_ends_everything_with_3(tmp_path: Path) -> None:
    done = staged(
        f"""
        $TOOL apply --yes --select max-map-count-low >/dev/null
        sed -i '1s/swap/swop/;1s/3000/4000/' /var/lib/torchtune-sys/0001.journal
        $TOOL undo --yes; echo "undo $?"
        $TOOL history; echo "history $?"
        cat {MAPS}
        """,
        tmp_path / "stage",
    )
    assert "the journal is damaged" in done.stderr and "undo 3\n" in done.stdout and "history 3\n65530\n" in done.stdout


def test_nothing_is_changed_where_the_journal_cannot_be_written(tmp_path: Path) -> None:
    done = staged(
        f"""
        mount -o remount,bind,ro /var/lib/torchtune-sys
        $TOOL apply --yes --select max-map-count-low; echo "status $?"
        cat {MAPS}; ls {OURS} || true
        """,
        tmp_path / "stage",
    )
    assert "nothing was changed: /var/lib/torchtune-sys" in done.stderr and "status 1\n3000\n" in done.stdout


def test_a_read_only_etc_is_refused_with_the_owner(tmp_path: Path) -> None:
    done = staged("mount -o remount,ro /etc\n$TOOL plan --select max-map-count-low; echo status $?", tmp_path / "stage")
    assert "the image (/etc is read-only) owns this system's configuration" in " ".join(done.stdout.split())
    assert "status 0" in done.stdout


def test_another_user_is_told_to_use_sudo(tmp_path: Path) -> None:
    script = f'cd /; setpriv --reuid 65534 --regid 65534 --clear-groups $TOOL apply --yes --select max-map-count-low; echo "status $?"; cat {MAPS}'
    done = staged(script, tmp_path / "stage")
    if "No module named" in done.stderr or "ermission denied" in done.stderr:
        pytest.skip("another user may not read this interpreter")
    assert "changing this host needs root" in done.stderr and "status 2\n3000\n" in done.stdout
