"""Runs and their undoing on real files: what somebody else changed, what fails half way, what the journal must not hide."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.model.actions import Advice, Needs, Safety, Sysctl
from torchtune_sys.model.plan import Change, CommandStep, FileLine, MadeBefore, Plan, PlannedFile, Step, Value
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target
from torchtune_sys.remediation.apply import durable, journal, lock, prepare, session, undo
from torchtune_sys.remediation.apply.journal import DamagedJournal, Journal
from torchtune_sys.remediation.apply.session import ApplyRun, Moment

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of root are written")
MOMENT = Moment(version="test", time="2026-01-01T00:00:00Z", boot_id="one")


def change(key: str, *steps: Step) -> Change:
    about = {"rules": (key,), "why": "a test", "seen": "", "wanted": ""}
    return Change(key=key, action=Advice(text=key), safety=Safety.SAFE, needs=Needs.NOTHING, steps=steps, **about)


def plan(*changes: Change, files: tuple[PlannedFile, ...] = ()) -> Plan:
    return Plan(host="here", origin="live", changes=changes, files=files, refused=(), by_hand=())


class Place:
    """A folder with a value, a file of ours that is there, and a journal."""

    def __init__(self, folder: Path) -> None:
        self.value, self.file, self.state = folder / "value", folder / "etc" / "99-ours.conf", str(folder / "state")
        self.file.parent.mkdir()
        self.value.write_text("60\n")
        self.file.write_text("# before\n")
        self.file.chmod(0o640)

    def plan(self, value: str = "10") -> Plan:
        steps = (Value(path=str(self.value), value=value), FileLine(path=str(self.file), key="k", text=f"k = {value}"))
        before = self.file.read_text() if self.file.is_file() else None
        return plan(
            change("k", *steps), files=(PlannedFile(path=str(self.file), before=before, content=f"# ours\nk = {value}\n"),)
        )

    def run(self, made: Plan | None = None, stop_after: int = 10**6) -> ApplyRun:
        made = made or self.plan()
        steps = iter(range(10**6))
        files = {change.key: change for change in made.changes}
        return session.run(
            made,
            lambda failed: () if failed and set(files) <= failed else made.files,
            lambda: next(steps) >= stop_after,
            MOMENT,
            self.state,
        )

    def journal(self, number: int = 1) -> Journal:
        return journal.load(self.state, number)

    def undo(self, number: int = 1) -> undo.Undone:
        return undo.undo(self.journal(number), same_boot=True)

    def seen(self) -> tuple[str, bytes, int]:
        return self.value.read_text().strip(), self.file.read_bytes(), self.file.stat().st_mode & 0o7777


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_there_and_back(place: Place) -> None:
    before = place.seen()
    run = place.run()
    assert (run.failed, run.rolled_back) == ({}, "")
    assert place.seen() == ("10", b"# ours\nk = 10\n", 0o644)
    assert place.journal().state == "applied"
    result = place.undo()
    assert place.seen() == before and not result.kept and len(result.restored) == 2
    assert place.journal().state == "undone"
    assert place.undo().restored == ()  # again: nothing is left to do


def test_what_failed_was_not_made_before(place: Place) -> None:
    """A command that had failed was taken for made until the next start: apply did not try it again."""
    good, bad = (change(word, CommandStep(argv=(word,), undo=("true",))) for word in ("true", "false"))
    assert set(place.run(plan(good, bad, *place.plan().changes, files=place.plan().files)).failed) == {"false"}
    assert session.made_before("one", place.state) == MadeBefore(since_start=frozenset({"true", "k"}))
    assert session.made_before("two", place.state) == MadeBefore(earlier=frozenset({"true", "k"}))
    place.undo()
    assert session.made_before("one", place.state) == MadeBefore()


@pytest.mark.parametrize("now", ["33", "60"])
def test_a_value_that_somebody_set_since_is_left(place: Place, now: str) -> None:
    place.run()
    place.value.write_text(f"{now}\n")
    result = place.undo()
    assert place.value.read_text().strip() == now
    assert set(result.kept) == ({str(place.value)} if now == "33" else set())
    assert place.file.read_text() == "# before\n"  # the rest is taken back all the same


def test_a_file_that_somebody_changed_or_removed_since_is_left(place: Place) -> None:
    place.run()
    place.file.write_text("# theirs\n")
    assert set(place.undo().kept) == {str(place.file)}
    assert place.file.read_text() == "# theirs\n" and place.value.read_text().strip() == "60"


def test_runs_are_undone_from_the_last(place: Place) -> None:
    place.run()
    place.run(place.plan("5"))
    assert str(place.file) in place.undo(1).kept  # run 2 has written it since
    assert place.undo(2).kept == {}
    assert place.file.read_text() == "# ours\nk = 10\n"


def test_a_command_of_two_runs_is_known_of_both(place: Place) -> None:
    """Undone for the earlier run it was taken away from the later one, too, and nobody was told."""
    again = plan(change("c", CommandStep(argv=("true", "--args=x"), undo=("true",))))
    for number in (1, 2):
        place.run(again)
        assert place.journal(number).touched == {"true --args=x"}


def test_what_cannot_be_put_back_is_tried_again_and_bars_no_later_run(place: Place) -> None:
    before = place.seen()
    place.run()
    place.file.unlink()
    place.file.write_text("# ours\nk = 10\n")
    subprocess.run(("chattr", "+i", place.file), check=True)
    try:
        assert set(place.undo().failed) == {str(place.file)}
    finally:
        subprocess.run(("chattr", "-i", place.file), check=True)
    assert place.journal().state == "undone in part" and session.unfinished(place.state) is None
    assert place.undo().failed == {} and place.seen() == before and not place.journal().is_open


def test_a_file_system_that_cannot_sync_directories(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CIFS and some of 9p: EINVAL for a directory, and for nothing else."""
    fsync, before = os.fsync, place.seen()

    def of_files(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", of_files)
    assert place.run().rolled_back == "" and place.seen()[0] == "10"
    assert place.undo().failed == {} and place.seen() == before


@pytest.mark.parametrize("steps", [0, 1])
def test_stopped_between_two_steps_all_is_taken_back(place: Place, steps: int) -> None:
    before = place.seen()
    run = place.run(stop_after=steps)
    assert run.rolled_back == "interrupted" and run.kept == {}
    assert place.seen() == before and place.journal().state == "rolled-back"


def test_a_value_that_the_kernel_refuses_fails_its_change_alone(place: Place, tmp_path: Path) -> None:
    """/proc/sys/kernel/ngroups_max may be read and not be written, whoever asks."""
    other = tmp_path / "other"
    other.write_text("1\n")
    refused = change("refused", Value(path=str(other), value="2"), Value(path="/proc/sys/kernel/ngroups_max", value="7"))
    fine = change("fine", Value(path=str(place.value), value="10"))
    run = place.run(plan(refused, fine))
    assert set(run.failed) == {"refused"} and run.failed["refused"].startswith("/proc/sys/kernel/ngroups_max: ")
    assert other.read_text().strip() == "1"  # what the failed change did already is taken back
    assert place.value.read_text().strip() == "10"


def test_a_file_has_the_mode_that_is_asked_for(place: Place) -> None:
    path = str(place.file)
    asked = PlannedFile(path=path, before="# before\n", content="key = 1\n", mode=0o600)
    assert place.run(plan(change("k", FileLine(path=path, key="k", text="key = 1")), files=(asked,))).failed == {}
    assert place.file.stat().st_mode & 0o7777 == 0o600
    place.undo()
    assert place.file.stat().st_mode & 0o7777 == 0o640


MEANWHILE = [
    (AtLeast(50), "60", "70", ("70", "")),
    (AtLeast(50), "60", "60", ("60", "k = 60")),
    (AtLeast(50), "60", "55", ("60", "k = 60")),
    (AtMost(10), "10", "1", ("1", "")),
    (AtMost(10), "10", "60", ("10", "k = 10")),
    (OneOf(("a", "b")), "a", "b", ("b", "")),
    (Exactly("10"), "10", "5", ("10", "k = 10")),
    (AtLeast(9), "1 2 9", "1 2 12", ("1 2 12", "")),
]


@pytest.mark.parametrize("when", ["before the run", "before the step"])
@pytest.mark.parametrize(("target", "value", "now", "after"), MEANWHILE)
def test_what_was_improved_meanwhile_is_not_lowered(
    place: Place, target: Target, value: str, now: str, after: tuple[str, str], when: str
) -> None:
    """Nor is less than that kept in a file, where the next start would lower it."""
    place.value.write_text("1 2 3\n" if " " in value else "30\n")
    before = place.file.read_text()
    steps = (Value(path=str(place.value), value=value), FileLine(path=str(place.file), key="k", text=f"k = {value}"))
    asked = msgspec.structs.replace(change("k", *steps), action=Sysctl(key="k", target=target))
    ours = PlannedFile(path=str(place.file), before=before, content=f"k = {value}\n")
    made = plan(asked, files=(ours,))
    if when == "before the run":
        place.value.write_text(now + "\n")
    run = session.run(
        made,
        lambda out: () if out else (ours,),
        lambda: False,
        MOMENT,
        place.state,
        lambda what: place.value.write_text(now + "\n") if what == str(place.value) else None,
    )
    assert (place.value.read_text().strip(), place.file.read_text().strip()) == (after[0], after[1] or before.strip())
    assert run.failed == {} and ("k" in run.left) == (after[0] == now)
    assert after[1] or "not kept in a file" in run.left["k"]
    assert place.undo().kept == {} and place.file.read_text() == before
    assert when == "before the step" or place.value.read_text().strip() == now


def test_other_numbers_that_were_raised_meanwhile_are_not_lowered(place: Place) -> None:
    place.value.write_text("1 2 3\n")
    step = Value(path=str(place.value), value="1 2 9")
    made = plan(msgspec.structs.replace(change("k", step), action=Sysctl(key="k", target=AtLeast(9))))
    place.value.write_text("5 6 7\n")
    run = place.run(made)
    assert "the plan was made where the other numbers" in run.failed["k"] and place.value.read_text() == "5 6 7\n"


def test_what_was_left_may_be_changed_later_and_is_not_touched_by_undo(place: Place) -> None:
    place.value.write_text("70\n")
    made = plan(
        msgspec.structs.replace(change("k", Value(path=str(place.value), value="60")), action=Sysctl(key="k", target=AtLeast(60)))
    )
    assert place.run(made).left
    place.value.write_text("90\n")
    assert place.undo() == undo.Undone(restored=(), kept={}, failed={}) and place.value.read_text() == "90\n"


def test_a_failing_command_is_told_by_what_it_said(place: Place) -> None:
    argv = ("sh", "-c", "echo no such luck >&2; exit 3")
    run = place.run(plan(change("c", CommandStep(argv=argv, undo=("true",)))))
    assert "no such luck" in run.failed["c"]


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_what_stands_in_the_place_of_our_file_is_not_touched(place: Place, kind: str) -> None:
    place.file.unlink()
    if kind == "link":
        place.file.symlink_to("/etc/passwd")
    elif kind == "folder":
        place.file.mkdir()
    else:
        os.mkfifo(place.file)
    with pytest.raises(prepare.Unready):
        place.run()
    assert place.value.read_text().strip() == "60" and journal.numbers(place.state) == []


def test_attributes_and_owner_come_back(place: Place) -> None:
    os.chown(place.file, 12, 34)
    os.setxattr(place.file, "user.note", b"\x00kept") if _has_user_attributes(place.file) else None
    before = durable.read(str(place.file))
    place.run()
    place.undo()
    assert durable.read(str(place.file)) == before


def _has_user_attributes(path: Path) -> bool:
    try:
        os.setxattr(path, "user.probe", b"x")
        os.removexattr(path, "user.probe")
    except OSError:
        return False
    return True


@given(place=st.integers(0, 4000), flip=st.integers(1, 255))
def test_a_damaged_journal_is_said_and_nothing_is_guessed(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    stage = Place(tmp_path_factory.mktemp("journal"))
    stage.run()
    path = Path(stage.journal().path)
    content = bytearray(path.read_bytes())
    at = place % (len(content) - 1)  # the last newline alone may be torn off
    content[at] ^= flip
    path.write_bytes(bytes(content))
    after = stage.seen()
    with pytest.raises(DamagedJournal) as said:
        stage.undo()
    assert said.value.exit_code == 3 and stage.seen() == after


def test_a_torn_last_line_is_cut_off(place: Place) -> None:
    place.run()
    path = Path(place.journal().path)
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        assert place.journal().state == "interrupted"
    path.write_bytes(whole[: last + 5])
    before_undo = place.undo()
    assert not before_undo.kept and place.seen() == ("60", b"# before\n", 0o640)
    assert place.journal().state == "undone"


@pytest.mark.parametrize("content", [b"", b"{}\n", b"00000000 {}\n", b"\xff\xfe\n"])
def test_what_is_no_journal_is_said(place: Place, content: bytes) -> None:
    place.run()
    Path(place.journal().path).write_bytes(content)
    with pytest.raises(DamagedJournal):
        place.journal()


def test_one_at_a_time(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    with lock.held(folder, 0), pytest.raises(lock.Busy, match=str(os.getpid())), lock.held(folder, 0.2):
        pass
    code = "import sys, time\nfrom torchtune_sys.remediation.apply import lock\nwith lock.held(sys.argv[1], 0):\n print('in', flush=True)\n time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"in\n"
        with lock.held(folder, 60):  # waits for the other to end
            assert other.wait(60) == 0


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """The journal's own file system fills up in the middle of a run."""
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=8k,mode=0755", "none", str(full)), capture_output=True, check=False
    ).returncode:
        pytest.skip("needs root that may mount")
    try:
        stage = Place(tmp_path)
        stage.state = str(full / "state")
        before = stage.seen()
        many = tuple(change(f"k{n}", Value(path=str(stage.value), value=str(100 + n))) for n in range(60))
        try:
            run = stage.run(plan(*many))
        except OSError as error:
            assert error.strerror == "No space left on device"  # not even the header fitted: nothing was begun
        else:
            assert "No space left" in run.rolled_back
        assert stage.seen() == before
    finally:
        subprocess.run(("umount", str(full)), check=True)
