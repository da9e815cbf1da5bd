"""A state directory in which another user decides what lies there: a journal of theirs says what root puts back, and which commands it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stage import FILE, NEEDS, STATE, staged

from torchtune_sys.errors import UserError
from torchtune_sys.host import state_folder
from torchtune_sys.remediation.apply import journal
from torchtune_sys.remediation.apply.durable import FileState
from torchtune_sys.remediation.apply.entries import CommandEntry, FileEntry, Header, JournalNote
from two_users import Scene, needs_root

pytestmark = [*NEEDS, needs_root]
WAYS = {
    "hers": "chown {alice} {state}; as_alice cp {planted} {state}/0001.journal",
    "everybody's": "chmod 1777 {state}; as_alice cp {planted} {state}/0001.journal",
    "a link to hers": "umount {state}; mount -t tmpfs -o mode=0755 none /var/lib; as_alice mkdir {home}/s; as_alice cp {planted} {home}/s/0001.journal; ln -s {home}/s {state}",
    "below hers": "umount {state}; mount -t tmpfs -o mode=0755 none /var/lib; chown {alice} /var/lib; as_alice mkdir {state}; as_alice cp {planted} {state}/0001.journal",
    "her file in root's": "cp {planted} {state}/0001.journal; chown {alice} {state}/0001.journal",
}


def planted(mark: Path) -> bytes:
    entries = (
        CommandEntry(change="c", argv=("true",), undo=("/bin/sh", "-c", f"id -u >{mark}")),
        FileEntry(changes=("f",), path="/etc/cron.d/own", before=FileState(content=b"hers\n", mode=0o644, uid=0, gid=0)),
    )
    header = Header(schema=journal.SCHEMA, version="1", time="t", boot_id="x", rules=(), changes=("c", "f"), entries=entries)
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    notes = [JournalNote(what="done", entry=number, after=empty) for number in range(2)]
    return b"".join(map(journal.line, (header, *notes, JournalNote(what="applied"))))


@pytest.mark.parametrize("way", WAYS)
def test_a_journal_of_another_user_s_is_not_carried_out(scene: Scene, way: str, tmp_path: Path) -> None:
    file = scene.folder / "planted"
    file.write_bytes(planted(scene.marks / "0-1"))
    file.chmod(0o644)
    words = {"alice": scene.alice.name, "home": scene.alice.home, "state": STATE, "planted": file}
    script = f"""
    as_alice() {{ setpriv --reuid {scene.alice.uid} --regid {scene.alice.gid} --clear-groups "$@"; }}
    mkdir -p /etc/cron.d; : >/etc/cron.d/own
    {WAYS[way].format(**words)}
    tt history; tt undo --yes; tt note x; tt $APPLY; shows /etc/cron.d/own
    """
    found = staged(tmp_path, script)
    assert scene.who_ran() == set()
    assert "hers" not in found.rpartition("/etc/cron.d/own:")[2]
    assert found.count("rc 3") == 4 and found.count("nothing of it is believed") == 4, found


@pytest.mark.parametrize("way", ["hers", "everybody's"])
def test_notes_of_a_generated_script_are_root_s(scene: Scene, way: str, tmp_path: Path) -> None:
    script = f"""
    as_alice() {{ setpriv --reuid {scene.alice.uid} --regid {scene.alice.gid} --clear-groups "$@"; }}
    $TOOL generate script --from {Path(__file__).parents[1] / "hosts" / "swappiness-high.fail.json"} >"$STAGE/tune.sh"
    {"chown " + scene.alice.name if way == "hers" else "chmod 1777"} {STATE}
    as_alice mkdir {STATE}/script
    as_alice sh -c 'printf "%s\\0" /bin/sh -c "id -u >{scene.marks}/0-1" >{STATE}/script/000001-0.command'
    as_alice cp {STATE}/script/000001-0.command {STATE}/script/000001-0.set
    for mode in --undo --check ''; do bash "$STAGE/tune.sh" $mode; echo "rc $?"; done
    TORCHTUNE_SYS_STATE=$STAGE/own TORCHTUNE_SYS_LOG={STATE}/script/log; export TORCHTUNE_SYS_STATE TORCHTUNE_SYS_LOG
    as_alice ln -s "$STAGE/victim" {STATE}/script/log
    bash "$STAGE/tune.sh"; echo "rc $?"; ls "$STAGE/victim"
    """
    found = staged(tmp_path, script)
    assert scene.who_ran() == set()
    assert found.count("rc 1") == 4 and found.count("so nothing was changed") == 4, found
    assert "No such file" in found


def test_no_file_is_written_or_removed_where_another_user_decides_the_folder(scene: Scene, tmp_path: Path) -> None:
    """She owns what /etc/sysctl.d lies in and puts a link in its place: root's file of that name behind it was replaced, 0600 made 0644, and removed."""
    script = f"""
    tt() {{ $TOOL "$@" 2>&1 | tr -s ' \n' ' '; echo "rc ${{PIPESTATUS[0]}}"; }}
    steal() {{ mv /etc/sysctl.d /etc/roots; ln -s /etc/roots /etc/sysctl.d; chown -h {scene.alice.name} /etc/sysctl.d; }}
    give() {{ rm /etc/sysctl.d; mv /etc/roots /etc/sysctl.d; }}
    steal; tt $APPLY; give
    tt $APPLY; steal; tt undo --yes; shows {FILE}; give; tt undo --yes; shows {FILE}
    $TOOL generate script --select max-map-count-low >"$STAGE/tune.sh"
    steal; bash "$STAGE/tune.sh"; ls /etc/roots/99-torchtune-sys.conf
    give; bash "$STAGE/tune.sh"; steal; bash "$STAGE/tune.sh" --undo; ls /etc/roots/99-torchtune-sys.conf
    """
    found = staged(tmp_path, script)
    assert found.count("others than root decide what lies at /etc/sysctl.d") == 2, found
    assert (
        found.count("/etc/roots/99-torchtune-sys.conf\n") == 1 and found.count("access '/etc/roots/99-torchtune-sys.conf'") == 1
    ), found
    assert found.count("rc 1") == 2 and found.count("rc 0") == 2, found
    assert found.count(f"/etc/sysctl.d belongs to user {scene.alice.name}") == 3, found
    stolen, free = (line.partition(": ")[2] for line in found.splitlines() if line.startswith(FILE) and line.endswith("|"))
    assert "vm.max_map_count" in stolen and "No such file" in free


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "huge"])
def test_what_stands_in_the_place_of_a_lock_or_a_journal(tmp_path: Path, kind: str) -> None:
    """A link led root to empty the file behind it; 8 GiB of nothing were read."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("lock", "0001.journal"):
        folder = tmp_path / f"state-{name}"
        folder.mkdir(mode=0o700)
        place = folder / name
        if kind == "link":
            place.symlink_to(victim)
        elif kind == "fifo":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        else:
            place.touch()
            os.truncate(place, 8 << 30)
        code = f"""
import resource; resource.setrlimit(resource.RLIMIT_DATA, (512 << 20,) * 2)
from torchtune_sys.errors import UserError
from torchtune_sys.remediation.apply import journal, lock
try:
    if {name!r} == "lock":
        with lock.held({str(folder)!r}, 0): pass
    else:
        journal.load({str(folder)!r}, 1)
except (UserError, OSError) as error:
    print(type(error).__name__)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert not done.returncode and (done.stdout or (name, kind) in (("lock", "fifo"), ("lock", "huge"))), done
    assert victim.read_text() == "precious"


def test_a_proof_that_another_user_wrote_proves_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = scene.folder / "state"
    folder.mkdir()
    (folder / "proof.json").write_text("{}")
    monkeypatch.setattr(state_folder, "STATE", str(folder))
    assert state_folder.doubt_of(f"{folder}/proof.json") == ""
    os.chown(folder / "proof.json", scene.alice.uid, -1)
    assert scene.alice.name in state_folder.doubt_of(f"{folder}/proof.json")
    os.chown(folder, scene.alice.uid, -1)
    assert scene.alice.name in state_folder.doubt_of(f"{folder}/standard.json")


def test_a_user_s_own_folder_is_theirs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=scene.alice.name):
        state_folder.require_trusted(str(scene.alice.home))
    monkeypatch.setattr(os, "geteuid", lambda: scene.alice.uid)
    assert state_folder.doubt(str(scene.alice.home)) == ""
