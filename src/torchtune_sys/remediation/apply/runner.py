"""Execute a plan, one journalled step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from torchtune_sys.model.plan import PlannedFile
from torchtune_sys.remediation.apply import durable, units, values
from torchtune_sys.remediation.apply.entries import CommandEntry, Entry, FileEntry, UnitEntry, ValueEntry, name
from torchtune_sys.remediation.apply.journal import Journal
from torchtune_sys.remediation.apply.undo import Kept, undo_entry

Stop = Callable[[], bool]
"""True once somebody asked us to end (Ctrl-C, SIGTERM)."""
Tell = Callable[[str], None]
"""Hears what is being done."""
Files = Callable[[frozenset[str]], tuple[PlannedFile, ...]]
"""Return the planned files without the changes (by key) that failed."""


class Interrupted(Exception):
    """Somebody asked us to end between two steps."""


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the changes of a run."""

    failed: dict[str, str]
    """Key of the change → why."""
    left: dict[str, str] = {}
    """Key of a change → what was as good already, or better, and was left as it was."""


class _Left(msgspec.Struct):
    """Values that were already as good as those to be written."""

    better: dict[str, list[str]] = {}
    """Change → in words. A file must not hold less than that."""
    same: dict[str, list[str]] = {}

    def add(self, entry: ValueEntry, present: str) -> None:
        found = self.same if present.split() == entry.value.split() else self.better
        found.setdefault(entry.change, []).append(f"{entry.path} held {present} already")

    def reasons(self, entries: Iterable[Entry], failed: Iterable[str]) -> dict[str, str]:
        """Return why each change was left; a change whose values were equal counts only if all of them were."""
        found = {change: f"{_few(words)}: left, and not kept in a file" for change, words in self.better.items()}
        for change, words in self.same.items():
            if len(words) == sum(isinstance(entry, ValueEntry) and entry.change == change for entry in entries):
                found[change] = _few(words)
        return {change: words for change, words in found.items() if change not in failed}


def _few(words: list[str]) -> str:
    more = len(words) - 3
    return "; ".join(words[:3]) + (f"; and {more} more" if more > 0 else "")


def carry_out(journal: Journal, files: Files, stop: Stop, tell: Tell) -> StepOutcome:
    """Do every step. A step that fails fails its change, and what the change did already is taken back; the others go on.

    Raises OSError where the journal cannot be written, Interrupted where ``stop`` says so: then the caller takes all back.
    """
    failed: dict[str, str] = {}
    left = _Left()
    contents: dict[str, PlannedFile] | None = None
    for number, entry in enumerate(journal.header.entries):
        if stop():
            raise Interrupted
        tell(name(entry))
        if isinstance(entry, FileEntry):
            if contents is None:  # the values are done: what the kernel refused, or had better already, is not kept in a file
                contents = {file.path: file for file in files(frozenset({*failed, *left.better}))}
            if entry.path in contents:
                _file(journal, number, entry, contents[entry.path])
            continue
        if entry.change in failed:
            continue
        try:
            _do(journal, number, entry, left)
        except OSError as error:
            if journal.last(number) is None:
                raise  # the announcement itself could not be written
            failed[entry.change] = str(error.strerror or error)
            journal.note("failed", number, why=failed[entry.change])
            _take_back(journal, _done(journal, entry.change))
    if stop():  # during the last step
        raise Interrupted
    return StepOutcome(failed=failed, left=left.reasons(journal.header.entries, failed))


def _done(journal: Journal, change: str) -> Iterable[int]:
    for number, entry in enumerate(journal.header.entries):
        note = journal.last(number)
        if not isinstance(entry, FileEntry) and entry.change == change and note is not None and note.what in ("done", "failed"):
            yield number


def _take_back(journal: Journal, numbers: Iterable[int]) -> None:
    for number in reversed(list(numbers)):
        try:
            undo_entry(journal, number)
        except Kept as why:
            journal.note("kept", number, why=str(why))


def _do(journal: Journal, number: int, entry: Entry, left: _Left) -> None:
    match entry:
        case ValueEntry():
            journal.note("doing", number, after=entry.value)
            _value(journal, number, entry, left)
        case UnitEntry():
            journal.note("doing", number)
            units.set_to(entry.unit, units.UnitState(enabled=entry.enabled, active=entry.enabled))
            journal.note("done", number)
        case CommandEntry():
            journal.note("doing", number)
            units.command(entry.argv)
            journal.note("done", number)
        case FileEntry():
            raise AssertionError("files are written by _file")


def _value(journal: Journal, number: int, entry: ValueEntry, left: _Left) -> None:
    """Set a value. The host may have changed since the plan was confirmed; a value that is as good by now is left."""
    present = values.read(entry.path)
    if values.as_good(entry.target, present, entry.value):
        left.add(entry, present)
        # Where it moved since the run began, an earlier step moved it (a governor sets its preference): then undoing must, too.
        journal.note("skipped" if present == entry.before else "done", number, after=present)
        return
    if values.other_numbers(entry.target, present, entry.value):
        raise units.Failed(f"{entry.path} holds {present}: the plan was made where the other numbers were those of {entry.value}")
    try:
        values.write(entry.path, entry.value)
    except OSError as error:
        raise units.Failed(f"{entry.path}: {error.strerror}") from None
    shown = values.read(entry.path)
    if shown != " ".join(entry.value.split()) and shown == entry.before:
        raise units.Failed(f"{entry.path} still holds {shown}")
    journal.note("done", number, after=shown)


def _file(journal: Journal, number: int, entry: FileEntry, file: PlannedFile) -> None:
    content = file.content.encode()
    journal.note("doing", number, after=durable.digest(content), text=file.content)
    durable.make_folders(entry.made)
    durable.write(entry.path, durable.FileState(content=content, mode=file.mode, uid=0, gid=0, xattrs=_kept(entry)))
    for argv in entry.refresh:
        units.command(argv)
    journal.note("done", number, after=durable.digest(content), text=file.content)


def _kept(entry: FileEntry) -> dict[str, bytes]:
    return {} if entry.before is None else entry.before.xattrs
