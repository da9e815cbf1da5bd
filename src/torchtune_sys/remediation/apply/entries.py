"""The journal's entries: the previous state of each step."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.target import Target
from torchtune_sys.remediation.apply.durable import FileState


class ValueEntry(msgspec.Struct, frozen=True, kw_only=True, tag="value"):
    change: str
    """Key of the change that asked for it."""
    path: str
    value: str
    before: str
    counterpart: str = ""
    counterpart_before: str = ""
    target: Target | None = None
    """What is asked for, where another value than ``value`` would do as well."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
    changes: tuple[str, ...]
    path: str
    before: FileState | None
    made: tuple[str, ...] = ()
    """Directories that had to be made."""
    refresh: tuple[tuple[str, ...], ...] = ()


class UnitEntry(msgspec.Struct, frozen=True, kw_only=True, tag="unit"):
    change: str
    unit: str
    enabled: bool
    """What is asked for."""
    was_enabled: bool
    was_active: bool


class CommandEntry(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    change: str
    argv: tuple[str, ...]
    undo: tuple[str, ...]


Entry = ValueEntry | FileEntry | UnitEntry | CommandEntry


def name(entry: Entry) -> str:
    """Return what a step changes, in words for people; two steps of one name change the same."""
    match entry:
        case ValueEntry(path=path) | FileEntry(path=path):
            return path
        case UnitEntry(unit=unit):
            return unit
        case CommandEntry(argv=argv):
            return " ".join(argv)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a journal: the run, and everything that is needed to take it back."""

    schema: str
    version: str
    time: str
    boot_id: str
    rules: tuple[str, ...]
    changes: tuple[str, ...]
    entries: tuple[Entry, ...]
    asked_by: dict[str, str] = {}
    """Key of a change → the (first) rule that asked for it."""


class JournalNote(msgspec.Struct, frozen=True, kw_only=True):
    """A later line: what became of an entry, or of the run."""

    what: str
    """``doing``, ``done``, ``failed``, ``skipped`` (it was as good already), ``undone``, ``kept``: of an entry. ``applied``, ``rolled-back``, ``undoing``, ``undone-all``,
    ``undone-part`` (something failed): of the run. ``elsewhere``: what somebody else changed for the run, which undoing only names."""
    entry: int = -1
    after: str = ""
    """A value as the kernel shows it; the SHA-256 of a file."""
    why: str = ""
    time: str = ""
    text: str = ""
    """What was written into a file."""
