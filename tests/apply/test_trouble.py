"""Full disks, read-only places, damaged journals, signals and terminals, as the command meets them."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stage import FILE, MAPS, NEEDS, PIDS, SET_UP, staged

import warm

pytestmark = NEEDS
STATE = "/var/lib/torchtune-sys"
NOTHING = f"{MAPS}: 3000|\n{PIDS}: 2000|\nls: cannot access '{FILE}'"
LOOK = f"shows {MAPS} {PIDS}; ls {FILE}; ls -A /etc/sysctl.d | grep torchtune"
FULL = "mount -t tmpfs -o size=64k,mode=0755 none /var/lib/torchtune-sys"
BROKEN = {
    "the state is a file": "umount /var/lib/torchtune-sys; mount -t tmpfs -o mode=0755 none /var/lib; touch /var/lib/torchtune-sys",
    "the state is read-only": "mount -t tmpfs -o ro,mode=0755 none /var/lib/torchtune-sys",
    "the state's disk is full": "mount -t tmpfs -o size=4k,mode=0755 none /var/lib/torchtune-sys; head -c 8192 /dev/zero > /var/lib/torchtune-sys/x",
    "the state has no inode": "mount -t tmpfs -o nr_inodes=1,mode=0755 none /var/lib/torchtune-sys",
    "etc is full": "mount -t tmpfs -o size=4k none /etc/sysctl.d; head -c 8192 /dev/zero > /etc/sysctl.d/x",
    "the folder is read-only": "mount -t tmpfs -o ro none /etc/sysctl.d",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", BROKEN)
def test_nothing_is_left_changed(what: str, tmp_path: Path) -> None:
    found = staged(tmp_path, f"{{ {BROKEN[what]}; }} 2>/dev/null; tt $APPLY; {LOOK}; tt undo --yes; {LOOK}; tt history")
    applied, _, rest = found.partition(f"{MAPS}:")
    assert "internal error" not in found and "Traceback" not in found
    assert "cured" not in applied and "rc 0" not in applied
    refused = what == "the folder is read-only" and applied.count("/etc/sysctl.d is on a read-only file system") == 2
    assert refused or "othing was changed: " in applied or "Nothing was left changed: " in applied or "rc 3" in applied, applied
    assert NOTHING in found and rest.count(NOTHING.partition(f"{MAPS}:")[2]) >= 1


def test_a_read_only_state_is_the_host_s_fault_not_the_command_line_s(tmp_path: Path) -> None:
    found = staged(tmp_path, f"{FULL}; tt $APPLY; mount -o remount,ro {STATE}; echo now; tt undo --yes; tt note x")
    assert re.findall(r"rc (\d)", found.partition("now\n")[2]) == ["1", "1"], found


def test_a_read_only_etc_is_refused_by_the_plan(tmp_path: Path) -> None:
    found = staged(tmp_path, f"mount -o remount,ro /etc; tt $APPLY; {LOOK}")
    assert "the image (/etc is read-only) owns this system's configuration" in " ".join(found.split())
    assert NOTHING in found


def test_undo_needs_no_room(tmp_path: Path) -> None:
    script = f"""
    {FULL}; before > "$STAGE/1"; tt $APPLY
    head -c 99999 /dev/zero > {STATE}/fill; echo 'full:' {STATE}/*
    tt undo --yes; before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo same
    rm {STATE}/fill; tt undo --yes; before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo same
    """
    found = staged(tmp_path, script)
    assert found.count("same\n") == 2 and found.count("rc 0") == 3
    assert "everything is as it was" in found


def test_apply_fills_the_disk_of_its_journal(tmp_path: Path) -> None:
    """Room for the header and not for all the notes: taken back, and told."""
    script = f"""
    before > "$STAGE/1"
    for room in 0 1 2 3 4; do
      mount -t tmpfs -o size=16k,mode=0755 none {STATE}
      head -c $((16384 - 4096 * room)) /dev/zero > {STATE}/fill
      tt $APPLY | tail -4; before > "$STAGE/2"; cmp -s "$STAGE/1" "$STAGE/2" && echo same || echo changed
      rm {STATE}/fill; tt undo --yes | tail -2; before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo "same again"
      umount {STATE}
    done 2>&1
    """
    found = staged(tmp_path, script)
    assert found.count("same again") == 5 and "internal error" not in found
    for part in found.split("same again")[:-1]:
        assert ("cured" in part) == ("changed\n" in part), part


DAMAGE = {
    "a byte": "printf X | dd of={0} bs=1 seek=200 conv=notrunc status=none",
    "empty": ": > {0}",
    "a folder": "rm {0}; mkdir {0}",
    "gone": "rm {0}",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", DAMAGE)
def test_of_two_journals_the_first_is_damaged(what: str, tmp_path: Path) -> None:
    """History lists the other, and the other can be undone; all of them cannot."""
    damage = DAMAGE[what].format(f"{STATE}/0001.journal")
    runs = "tt apply --yes --select max-map-count-low; tt apply --yes --select task-table-small"
    found = staged(
        tmp_path, f"{runs}; {damage}; echo -- history; tt history; tt undo 1 --yes; tt undo 2 --yes; shows {PIDS}; tt $APPLY"
    )
    history, _, rest = found.partition("-- history\n")[2].partition("rc 3\n")
    assert "   2  " in history and "0001.journal" in history + "0001.journal" * (what == "gone"), history
    first, _, second = rest.partition("Run 2 of")
    assert ("rc 2" if what == "gone" else "rc 3") in first
    assert f"everything is as it was (2 restored)\nrc 0\n{PIDS}: 2000|\n" in second
    if what != "gone":
        assert second.endswith("rc 3\n")


def test_a_cut_off_run_must_be_undone_first(tmp_path: Path) -> None:
    script = f"""
    tt $APPLY > /dev/null; head -n 3 {STATE}/0001.journal > "$STAGE/j"; cat "$STAGE/j" > {STATE}/0001.journal
    echo 3000 > {MAPS}; tt apply --yes --select max-map-count-low; tt history
    """
    found = staged(tmp_path, script)
    assert "run 1 was interrupted\n  undo it first: torchtune-sys undo 1\nrc 1\n" in found
    assert "interrupted: " in found


ASKED = "apply --select max-map-count-low"


def at_terminal(
    tmp_path: Path, answer: bytes, meanwhile: tuple[str, str] = ("", ""), more: str = "", before: str = "", command: str = ASKED
) -> tuple[str, int]:
    """Run a command at a terminal, and type the answer once it asks; ``meanwhile`` is a file that is given another content then."""
    stage = tmp_path / "stage"
    stage.mkdir()
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"STAGE": str(stage), "PYTHON": sys.executable, "TOOL": warm.WORDS, "TERM": "xterm"}
        script = SET_UP + before + f'$TOOL {command}; code=$?; trap "" INT; shows {MAPS}; {more} exit $code'
        os.execvp("unshare", ["unshare", "--mount", "--net", "--propagation", "private", "bash", "-c", script])
    found, sent, end = b"", False, time.monotonic() + 60
    while time.monotonic() < end and select.select([terminal], [], [], 60)[0]:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        found += data
        if not sent and b"[y/N]" in found:
            if meanwhile[0]:
                Path(f"/proc/{child}/root{meanwhile[0]}").write_text(meanwhile[1])
            os.write(terminal, answer)
            sent = True
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return found.decode("utf-8", "replace"), os.waitstatus_to_exitcode(status)


ANSWERS = {
    "yes": (b"y\n", 0, "65530|"),
    "no": (b"n\n", 1, "3000|"),
    "enter": (b"\n", 1, "3000|"),
    "end": (b"\x04", 130, "3000|"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_at_a_terminal(answer: str, tmp_path: Path) -> None:
    typed, code, value = ANSWERS[answer]
    found, status = at_terminal(tmp_path, typed)
    print(found)
    assert "Make these changes? [y/N]" in found and f"{MAPS}: {value}" in found
    assert status == code
    assert "\x1b[" in found  # in colour here


HELD = "tt $APPLY >/dev/null; (exec 9> $STAGE/state/lock; flock -x 9; sleep 9) & sleep 0.5; "


@pytest.mark.parametrize(
    "command", ["apply --yes --wait 30 --select max-map-count-low", "undo --yes --wait 30"], ids=["apply", "undo"]
)
def test_what_takes_longer_than_two_seconds_is_shown_at_a_terminal(command: str, tmp_path: Path) -> None:
    """Another run holds the lock for nine."""
    found, _ = at_terminal(tmp_path, b"", before=HELD + f"echo 3000 > {MAPS};", command=command)
    print(found)
    assert "\r\x1b[Kwaiting for another run to end (2 s)" in found
    assert re.search(r"to end \(\d+ s\)\r\x1b\[K(?!waiting)", found), "it was not taken away"
    assert "cured" in found or "undone" in found


def test_what_is_improved_while_the_question_waits_stays(tmp_path: Path) -> None:
    found, status = at_terminal(tmp_path, b"y\n", (MAPS, "70000\n"), f"ls {FILE};")
    print(found)
    assert status == 5 and f"{MAPS}: 70000|" in found and "No such file" in found
    assert "lost at the next boot: no file sets it then" in " ".join(found.split())


@pytest.mark.sampled(2, 4)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("at", ["fsync", "rename"])
def test_a_signal_in_the_middle(number: signal.Signals, at: str, tmp_path: Path) -> None:
    if subprocess.run(["which", "strace"], capture_output=True).returncode:
        pytest.skip("needs strace")
    when = {"fsync": 5, "rename": 2}[at]
    trace = f"strace -f -qq -o /dev/null -e trace={at} -e inject={at}:signal={number.name}:when={when}"
    script = f"""
    before > "$STAGE/1"
    {trace} "$PYTHON" -m torchtune_sys $APPLY; echo "status $?"
    before > "$STAGE/2"; cmp -s "$STAGE/1" "$STAGE/2" && echo same
    tt history; tt undo --yes; before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo same again
    """
    found = staged(tmp_path, script)
    assert found.endswith("same again\n") and "internal error" not in found
    if number != signal.SIGKILL:
        assert "status 1\nsame\n" in found and "Nothing was left changed: interrupted" in found
        assert "rolled-back: 2 changes" in found
    else:
        assert "interrupted: 2 changes" in found and "everything is as it was" in found


def test_a_hangup_that_the_caller_ignores_takes_nothing_back(tmp_path: Path) -> None:
    """nohup(1): the terminal goes, and the run goes on."""
    if subprocess.run(["which", "strace"], capture_output=True).returncode:
        pytest.skip("needs strace")
    trace = "strace -f -qq -o /dev/null -e trace=fsync -e inject=fsync:signal=SIGHUP:when=5"
    found = staged(tmp_path, f"""trap '' HUP; {trace} "$PYTHON" -m torchtune_sys $APPLY; echo "status $?"; tt undo --yes""")
    assert "status 0\n" in found and "Nothing was left changed" not in found


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("number", "at"),
    [
        (signal.SIGINT, "fsync"),
        (signal.SIGTERM, "rename"),
        (signal.SIGHUP, "unlink"),
        (signal.SIGINT, "rename"),
        (signal.SIGKILL, "unlink"),
    ],
)
def test_a_signal_in_the_middle_of_undo(number: signal.Signals, at: str, tmp_path: Path) -> None:
    """Whatever it left, a second undo ends it."""
    if subprocess.run(["which", "strace"], capture_output=True).returncode:
        pytest.skip("needs strace")
    when = {"fsync": 3, "rename": 1, "unlink": 1}[at]
    trace = f"strace -f -qq -o /dev/null -e trace={at} -e inject={at}:signal={number.name}:when={when}"
    script = f"""
    {"printf 'by hand' > " + FILE if at == "rename" else ":"}
    before > "$STAGE/1"; tt $APPLY > /dev/null
    {trace} "$PYTHON" -m torchtune_sys undo --yes; echo "status $?"
    tt undo --yes; before > "$STAGE/2"; cmp "$STAGE/1" "$STAGE/2" && echo same; ls -A /etc/sysctl.d
    """
    found = staged(tmp_path, script)
    assert "internal error" not in found and "Traceback" not in found
    assert "status 0" not in found, "it was not hit"
    assert "everything is as it was" in found or "Every run was undone already" in found
    assert "\nsame\n" in found and ".99-torchtune-sys" not in found


ODD = {
    "no UTF-8": (r"printf '# mine \377\nvm.x = 1\n' > {0}", "is not UTF-8 text"),
    "a folder": ("mkdir {0}", "not a regular file"),
    "a link": ("echo vm.x=1 > /etc/x.conf; ln -s /etc/x.conf {0}", "is a symbolic link to /etc/x.conf"),
    "a mask": ("ln -s /dev/null {0}", "is a symbolic link to /dev/null"),
    "too large": ("head -c 5000000 /dev/zero > {0}", "larger than"),
}


@pytest.mark.parametrize("what", ODD)
def test_a_file_of_ours_that_is_odd_is_refused_and_left(what: str, tmp_path: Path) -> None:
    make, words = ODD[what]
    found = staged(
        tmp_path, f"{make.format(FILE)}; before > $STAGE/1; tt $APPLY; before > $STAGE/2; cmp $STAGE/1 $STAGE/2 && echo same"
    )
    assert words in " ".join(found.split()) and "what is there now must be read first" in " ".join(found.split())
    assert found.endswith("rc 1\nsame\n") and "safe change" not in found


def test_where_our_draft_would_be_stands_a_folder(tmp_path: Path) -> None:
    """Nothing is changed, and the run is not open for ever."""
    found = staged(tmp_path, f"mkdir /etc/sysctl.d/.99-torchtune-sys.conf.torchtune-sys; tt $APPLY; {LOOK}; tt history")
    assert "Nothing was left changed" in found and "rolled-back: 2 changes" in found and NOTHING in found
