"""Carry a plan out, one announced step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from torchtune_sys.apply import durable, units, values
from torchtune_sys.apply.entries import CommandEntry, Entry, FileEntry, UnitEntry, ValueEntry
from torchtune_sys.apply.journal import Journal
from torchtune_sys.apply.undo import Kept, undo_entry
from torchtune_sys.model.plan import File

Stop = Callable[[], bool]
"""True once somebody asked us to end (Ctrl-C, SIGTERM)."""
Files = Callable[[frozenset[str]], tuple[File, ...]]
"""The files as they are to be without the changes (by key) that failed."""


class Interrupted(Exception):
    """Somebody asked us to end between two steps."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the changes of a run."""

    failed: dict[str, str]
    """Key of the change → why."""


def carry_out(journal: Journal, files: Files, stop: Stop) -> Outcome:
    """Do every step. A step that fails fails its change, and what the change did already is taken back; the others go on.

    Raises OSError where the journal cannot be written, Interrupted where ``stop`` says so: then the caller takes all back.
    """
    failed: dict[str, str] = {}
    contents: dict[str, File] | None = None
    for number, entry in enumerate(journal.header.entries):
        if stop():
            raise Interrupted
        if isinstance(entry, FileEntry):
            if contents is None:  # the values are done: what the kernel refused is not kept in a file
                contents = {file.path: file for file in files(frozenset(failed))}
            if entry.path in contents:
                _file(journal, number, entry, contents[entry.path])
            continue
        if entry.change in failed:
            continue
        try:
            _do(journal, number, entry)
        except OSError as error:
            if journal.last(number) is None:
                raise  # the announcement itself could not be written
            failed[entry.change] = str(error.strerror or error)
            journal.note("failed", number, why=failed[entry.change])
            _take_back(journal, _done(journal, entry.change))
    if stop():  # during the last step
        raise Interrupted
    return Outcome(failed=failed)


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


def _do(journal: Journal, number: int, entry: Entry) -> None:
    match entry:
        case ValueEntry():
            journal.note("doing", number, after=entry.value)
            values.write(entry.path, entry.value)
            shown = values.read(entry.path)
            if shown != " ".join(entry.value.split()) and shown == entry.before:
                raise units.Failed(f"{entry.path} still holds {shown}")
            journal.note("done", number, after=shown)
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


def _file(journal: Journal, number: int, entry: FileEntry, file: File) -> None:
    content = file.content.encode()
    journal.note("doing", number, after=durable.digest(content))
    durable.make_folders(entry.made)
    durable.write(entry.path, durable.FileState(content=content, mode=file.mode, uid=0, gid=0, xattrs=_kept(entry)))
    for argv in entry.refresh:
        units.command(argv)
    journal.note("done", number, after=durable.digest(content))


def _kept(entry: FileEntry) -> dict[str, bytes]:
    return {} if entry.before is None else entry.before.xattrs
