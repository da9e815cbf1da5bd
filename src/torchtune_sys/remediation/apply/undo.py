"""Undo a run from its journal: restore what nobody changed since; leave and report what somebody changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from torchtune_sys.remediation.apply import durable, units, values
from torchtune_sys.remediation.apply.durable import FileState
from torchtune_sys.remediation.apply.entries import Entry, FileEntry, JournalNote, UnitEntry, ValueEntry, name
from torchtune_sys.remediation.apply.journal import Journal
from torchtune_sys.remediation.plan import files


class Kept(Exception):
    """Somebody changed it since; it is left as it is."""


class Foreseen(msgspec.Struct):
    """What undoing the runs that come first would leave behind: where undoing is only predicted, it stands for what is there."""

    values: dict[str, str] = {}
    files: dict[str, FileState | None] = {}
    units: dict[str, units.UnitState] = {}


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    restored: tuple[str, ...]
    kept: dict[str, str]
    """What was left as it is → why."""
    failed: dict[str, str]
    elsewhere: tuple[str, ...] = ()
    """What somebody else changed for the run; it stays."""


def undo(
    journal: Journal,
    *,
    same_boot: bool,
    time: str = "",
    tell: Callable[[str], None] = lambda what: None,
    dry: Foreseen | None = None,
) -> Undone:
    """Undo every step that was begun, the last first; may be repeated after a crash at any point. Raises OSError (journal).

    ``dry``: look as far, and write nothing but what it would be then, there.
    """
    torn = journal.is_open and not any(note.what == "applied" for note in journal.notes)
    if dry is None:
        _note(journal, "undoing", time=time)
    restored: list[str] = []
    kept: dict[str, str] = {}
    failed: dict[str, str] = {}
    for number in reversed(range(len(journal.header.entries))):
        entry = journal.header.entries[number]
        tell(name(entry))
        try:
            if torn and journal.made(number) is None:
                _untold(entry)
            elif undo_entry(journal, number, same_boot=same_boot, dry=dry):
                restored.append(name(entry))
        except Kept as why:
            kept[name(entry)] = str(why)
            if dry is None:
                _note(journal, "kept", number, why=str(why))
        except OSError as error:
            failed[name(entry)] = str(error.strerror or error)
    if dry is None:
        _note(journal, "undone-part" if failed else "undone-all", time=time)
    return Undone(restored=tuple(restored), kept=kept, failed=failed, elsewhere=journal.elsewhere)


def _note(journal: Journal, what: str, entry: int = -1, *, why: str = "", time: str = "") -> None:
    """Write a note if the disk has room. Restoring goes on without it, and a second undo finds everything restored."""
    with contextlib.suppress(OSError):
        journal.note(what, entry, why=why, time=time)


def undo_entry(journal: Journal, number: int, *, same_boot: bool = True, dry: Foreseen | None = None) -> bool:
    """Undo one step; False if there was nothing to undo. Raises Kept, OSError."""
    last, note = journal.last(number), journal.made(number)
    if note is None or (last is not None and last.what == "undone"):
        return False
    entry = journal.header.entries[number]
    match entry:
        case ValueEntry():
            changed = _value(entry, note, same_boot, dry)
        case FileEntry():
            changed = _file(entry, note, dry)
        case UnitEntry():
            changed = _unit(entry, dry)
        case _:
            if dry is None:
                units.command(entry.undo)
            changed = True
    if dry is None:
        _note(journal, "undone", number)
    return changed


def _untold(entry: Entry) -> None:
    """Check a step that the journal does not mention: if the journal's end was lost, its change would show here. Raises Kept, OSError."""
    match entry:
        case ValueEntry(path=path, before=before):
            with contextlib.suppress(FileNotFoundError):
                if (present := values.read(path)) != before:
                    raise Kept(f"it holds {present} now and held {before}, and the journal does not say that the run changed it")
        case FileEntry(path=path, before=file):
            try:
                same = durable.read(path) == file
            except durable.NotOurs:
                same = False
            if not same:
                raise Kept("it is not what it was, and the journal does not say that the run changed it")
        case _:
            return


def _value(entry: ValueEntry, note: JournalNote, same_boot: bool, dry: Foreseen | None) -> bool:
    try:
        present = values.read(entry.path) if dry is None else dry.values.get(entry.path) or values.read(entry.path)
    except FileNotFoundError:
        raise Kept("it is not there any more") from None
    wrote = " ".join(entry.value.split())
    if present == entry.before:
        return False
    # Cut off in the middle: the kernel may show it in another form, and a file laid over /proc or /sys (containers) may be empty.
    unsettled = (note.what != "done" and same_boot) or not present
    if present not in (note.after, wrote) and not unsettled:
        raise Kept(f"it holds {present} now, neither what was set ({note.after or wrote}) nor what was before ({entry.before})")
    if dry is not None:
        values.may_write(entry.path)
        dry.values |= {entry.path: entry.before, **({entry.counterpart: entry.counterpart_before} if entry.counterpart else {})}
        return True
    if entry.counterpart and entry.before == "0" and entry.counterpart_before not in ("", "0"):
        values.write(entry.counterpart, entry.counterpart_before)
    else:
        values.write(entry.path, entry.before)
    return True


def _file(entry: FileEntry, note: JournalNote, dry: Foreseen | None) -> bool:
    durable.require_trusted_folder(entry.path)
    try:
        present = dry.files[entry.path] if dry is not None and entry.path in dry.files else durable.read(entry.path)
    except durable.NotOurs as error:
        raise Kept(f"what is there now {error.strerror}") from None
    if present == entry.before:
        if dry is not None:
            return False
        with contextlib.suppress(IsADirectoryError):  # that is no draft of ours
            durable.remove(durable.draft_of(entry.path))
        durable.remove_folders(entry.made)
        _refresh(entry)
        return False
    if present is None:
        raise Kept("it was removed since")
    rest = entry.before
    if durable.digest(present.content) != note.after:
        rest = _without_ours(entry, note, present)
    if dry is not None:
        durable.may_write(entry.path)
        dry.files[entry.path] = rest
        return True
    if rest is not None and rest != entry.before:
        durable.write(entry.path, rest)
    elif entry.before is None:
        durable.remove(entry.path)
        durable.remove_folders(entry.made)
    else:
        durable.write(entry.path, entry.before)
    _refresh(entry)
    return True


def _without_ours(entry: FileEntry, note: JournalNote, present: FileState) -> FileState | None:
    """Return the file without the blocks that the run wrote: as it was before, and what somebody added since. Raises Kept.

    None: nothing is left, and there was no file.
    """
    changed = Kept("it was changed since, so what was written there stays: take out by hand what is not wanted")
    try:
        now, before = present.content.decode(), b"" if entry.before is None else entry.before.content
        wrote, there, was = files.parse(note.text), files.parse(now), files.parse(before.decode())
    except UnicodeDecodeError:
        raise changed from None
    ours = {key: text for key, text in wrote.ours.items() if was.ours.get(key) != text}
    if (
        not note.text
        or not any(key in there.ours for key in ours)
        or any(there.ours.get(key, text) != text for key, text in ours.items())
    ):
        raise changed  # our own lines were edited
    kept = {key: text for key, text in there.ours.items() if key not in ours}
    kept |= {key: text for key, text in was.ours.items() if key in ours}
    if not kept and not there.by_hand and entry.before is None:
        return None
    head = [files.HEAD] if kept or (entry.before is not None and files.HEAD in before.decode()) else []
    content = "\n\n".join([*head, *(kept[key] for key in sorted(kept)), *there.by_hand]) + "\n"
    return msgspec.structs.replace(present, content=content.encode())


def _refresh(entry: FileEntry) -> None:
    """Have the file read again. The file itself is restored, so a daemon that does not answer must not keep the run open. Raises Kept."""
    for argv in entry.refresh:
        try:
            units.command(argv)
        except OSError as error:
            raise Kept(f"it is restored, but reloading it failed: {error}") from None


def _unit(entry: UnitEntry, dry: Foreseen | None) -> bool:
    present = (dry.units.get(entry.unit) if dry is not None else None) or units.state(entry.unit)
    before = units.UnitState(enabled=entry.was_enabled, active=entry.was_active)
    if present == before:
        return False
    if dry is None:
        units.set_to(entry.unit, before)
    else:
        dry.units[entry.unit] = before
    return True
