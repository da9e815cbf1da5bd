"""The journal of one run: lines of JSON, each with its checksum, each synced before what it announces.

A power cut may tear the last line, and only that one: what it announced was not begun. Damage anywhere else is said and ends
everything, since guessing at what was there before would be worse than leaving it.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from typing import TypeVar

import msgspec

from torchtune_sys.errors import AGAIN_AS_ROOT, UserError
from torchtune_sys.host import state_folder
from torchtune_sys.model import codec
from torchtune_sys.remediation.apply import durable
from torchtune_sys.remediation.apply.entries import CommandEntry, Entry, FileEntry, Header, JournalNote, ValueEntry, name

STATE = state_folder.STATE
SCHEMA = "torchtune-sys/journal/1"
ELSEWHERE = "elsewhere"
"""The note of a change that the run did not make itself."""
_OF_A_STEP = frozenset(("doing", "done", "failed", "skipped", "undone", "kept"))
_OF_A_RUN = frozenset(("applied", "rolled-back", "undoing", "undone-all", "undone-part", ELSEWHERE))
_MOST_BYTES = 64 << 20
"""Far more than the configuration files that one run changes; what is longer is no journal."""
_NAME = re.compile(r"[0-9]{4}\.journal|[1-9][0-9]{4,8}\.journal")
_BEGINNING = re.compile(rb"[0-9a-f]{8} \{")
_T = TypeVar("_T")


class DamagedJournal(UserError):
    """A journal does not say what it must; nothing is guessed."""

    exit_code = 3


class OtherVersion(DamagedJournal):
    """A journal that a newer torchtune-sys wrote."""


class NoJournals(UserError):
    """The journals, or one of them, cannot be read: what was done on this host is not known."""

    exit_code = 3

    def __init__(self, path: str, error: OSError) -> None:
        root = isinstance(error, PermissionError)
        todo = AGAIN_AS_ROOT if root else "what was changed on this host is written there, so nothing is done without it"
        super().__init__(f"{path}: {error.strerror}", todo)


class _Schema(msgspec.Struct, frozen=True):
    schema: str


class Journal:
    """One run's journal on the disk."""

    def __init__(self, path: str, header: Header, notes: list[JournalNote]) -> None:
        self.path = path
        self.header = header
        self.notes = notes

    @property
    def number(self) -> int:
        return int(os.path.basename(self.path).partition(".")[0])

    def note(self, what: str, entry: int = -1, *, after: str = "", why: str = "", time: str = "", text: str = "") -> None:
        """Add a line and sync it. Raises OSError (a full disk); then the line is not there, or torn."""
        made = JournalNote(what=what, entry=entry, after=after, why=why, time=time, text=text)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            _mend_end(handle, self.path)
            _write_all(handle, line(made))
            os.fsync(handle)
        finally:
            os.close(handle)
        self.notes.append(made)

    def last(self, entry: int) -> JournalNote | None:
        """Return what was noted last of an entry."""
        return next((note for note in reversed(self.notes) if note.entry == entry), None)

    def made(self, entry: int) -> JournalNote | None:
        """Return what was noted last of making an entry, whatever became of undoing it; None if it was not made."""
        notes = (note for note in reversed(self.notes) if note.entry == entry)
        found = next((note for note in notes if note.what in ("doing", "done", "failed", "skipped")), None)
        return None if found is None or found.what == "skipped" else found

    @property
    def kept(self) -> tuple[int, ...]:
        """Return the entries that undoing left as they were found, since somebody had changed them."""
        last = {note.entry: note.what for note in self.notes}
        return tuple(sorted(entry for entry, what in last.items() if what == "kept"))

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Return what somebody else (a package manager, a playbook) changed for the run: undoing names it, and leaves it."""
        return tuple(dict.fromkeys(note.why for note in self.notes if note.what == ELSEWHERE))

    @property
    def touched(self) -> frozenset[str]:
        """Return by name what the run changed, or may have changed."""
        return frozenset(name(entry) for number, entry in enumerate(self.header.entries) if self.made(number) is not None)

    @property
    def state(self) -> str:
        """Return ``applied``, ``rolled-back``, ``undone`` (all of it, or all but what was kept), ``undone in part`` (what failed may be tried
        again), or ``interrupted``."""
        run = [note.what for note in self.notes if note.entry < 0 and note.what != ELSEWHERE]
        if not run:
            return "interrupted"
        return {"undoing": "interrupted", "undone-all": "undone", "undone-part": "undone in part"}.get(run[-1], run[-1])

    @property
    def is_open(self) -> bool:
        """Return whether something of it is left to undo."""
        return self.state in ("applied", "interrupted", "undone in part")


def line(value: Header | JournalNote) -> bytes:
    body = msgspec.json.encode(value)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _mend_end(handle: int, path: str) -> None:
    """Cut off a torn last line before another is added."""
    with open(path, "rb") as file:
        content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        os.ftruncate(handle, whole)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def begin(folder: str, header: Header) -> Journal:
    """Make the next run's journal, whole and synced. Raises OSError, ForeignState; then there is none."""
    state_folder.require_trusted(folder)
    durable.make_folders((*durable.missing_folders(f"{folder}/x"),), 0o700)
    runs, others = numbers(folder), strays(folder)
    number = max((*runs, *others), default=0) + 1
    if not _NAME.fullmatch(f"{number:04d}.journal"):  # behind a stray file of the greatest number a run would not be found again
        number = max(runs, default=0) + 1
        while number in others:
            number += 1
        if not _NAME.fullmatch(f"{number:04d}.journal"):
            raise OSError(errno.EOVERFLOW, f"no number is left behind run {max(runs)}", folder)
    path = f"{folder}/{number:04d}.journal"
    state = durable.FileState(content=line(header), mode=0o600, uid=os.geteuid(), gid=os.getegid())
    durable.write(path, state)
    return Journal(path, header, [])


def numbers(folder: str) -> list[int]:
    """Return the runs that have a journal, oldest first. Raises NoJournals, ForeignState."""
    found: list[int] = []
    for number in _named(folder):
        follows = number == (found[-1] if found else 0) + 1
        if follows or not _is_stray(folder, number):  # damage in the place of a run is damage
            found.append(number)
    return found


def strays(folder: str) -> list[int]:
    """Return the files with a journal's name that no run made: their number does not follow a run's, and they do not begin as journals do.
    Raises NoJournals, ForeignState."""
    runs = set(numbers(folder))
    return [number for number in _named(folder) if number not in runs]


def _is_stray(folder: str, number: int) -> bool:
    path = f"{folder}/{number:04d}.journal"
    try:
        if not os.path.isfile(path) or os.path.islink(path):
            return True
        with open(path, "rb") as file:
            return _BEGINNING.match(file.read(10)) is None
    except OSError:
        return False  # that it cannot be read is told by whoever loads it


def _named(folder: str) -> list[int]:
    state_folder.require_trusted(folder)
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NoJournals(folder, error) from None
    return sorted(int(name[:-8]) for name in names if name.isascii() and _NAME.fullmatch(name))


def load(folder: str, number: int) -> Journal:
    """Load a journal. Raises DamagedJournal, ForeignState, NoJournals where it cannot be read."""
    path = f"{folder}/{number:04d}.journal"
    state_folder.require_trusted(folder, os.path.basename(path))
    try:
        held = durable.read(path, at_most=_MOST_BYTES)
        if held is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    except OSError as error:
        raise NoJournals(path, error) from None
    rows = held.content.split(b"\n")
    if not rows[0] or len(rows) == 1:
        raise _damaged(path, 1, "the header is incomplete")
    schema = _row(rows[0], _Schema, path, 1).schema  # of the rest a newer version may make something else
    if schema != SCHEMA:
        raise OtherVersion(
            f"{path} is of another version of torchtune-sys ({schema})",
            "nothing was changed; undo it with the version that made it",
        )
    header = _row(rows[0], Header, path, 1)
    if b"\\u0000" in rows[0] or not all(map(_is_possible, header.entries)):
        raise _damaged(path, 1, "a step in it is none that a run makes")
    notes = []
    for place, row in enumerate(rows[1:-1], 2):  # what follows the last newline is torn
        note = _row(row, JournalNote, path, place)
        if note.what not in (_OF_A_RUN if note.entry < 0 else _OF_A_STEP) or not -1 <= note.entry < len(header.entries):
            raise _damaged(path, place, f"{note.what[:40]!r} of step {str(note.entry)[:40]} is nothing that a run notes")
        notes.append(note)
    return Journal(path, header, notes)


def _is_possible(entry: Entry) -> bool:
    if isinstance(entry, ValueEntry | FileEntry):
        return entry.path.startswith("/") and os.path.normpath(entry.path) == entry.path
    return not isinstance(entry, CommandEntry) or bool(entry.argv and entry.undo)


def _row(row: bytes, kind: type[_T], path: str, place: int) -> _T:
    sum_, blank, body = row.partition(b" ")
    try:
        if not blank or int(sum_, 16) != zlib.crc32(body):
            raise _damaged(path, place, "its checksum does not fit")
        found: _T = codec.loads(body, kind)
    except ValueError as error:
        raise _damaged(path, place, str(error)) from None
    return found


def missing(found: list[int]) -> DamagedJournal | None:
    """Return what tells of runs before others whose journals are gone."""
    known = sorted(found)
    gaps = [(before + 1, after - 1) for before, after in zip([0, *known], known, strict=False) if after - before > 1]
    if not gaps:
        return None
    gone = ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in gaps)
    what = f"the journal of run {gone} is" if gone.isdecimal() else f"the journals of runs {gone} are"
    return DamagedJournal(f"{what} missing", "what they changed is not known; the others are intact")


def _damaged(path: str, place: int, why: str) -> DamagedJournal:
    return DamagedJournal(
        f"{path}, line {place}: the journal is damaged: {why}",
        "nothing was guessed and nothing was changed; the file holds what was there before (JSON, contents in base64): "
        "put that back by hand, then move the file away",
    )
