"""One run of apply: begin, execute, and undo everything if it cannot be finished."""

from __future__ import annotations

import contextlib

import msgspec

from torchtune_sys.model.plan import MadeBefore, Plan
from torchtune_sys.remediation.apply import journal as journals
from torchtune_sys.remediation.apply import prepare, runner, undo
from torchtune_sys.remediation.apply.entries import FileEntry, Header
from torchtune_sys.remediation.apply.journal import Journal
from torchtune_sys.remediation.apply.runner import Files, Stop, Tell


class ApplyRun(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    number: int
    failed: dict[str, str]
    """Key of a change → why it could not be made."""
    left: dict[str, str] = {}
    """Key of a change → what was as good already, or better, and was left as it was."""
    rolled_back: str = ""
    """Why everything was taken back; empty: it was not."""
    kept: dict[str, str] = {}
    """After taking back: what is not as it was before, and why."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """When and by what a run is made."""

    version: str
    time: str
    boot_id: str


def run(
    plan: Plan, files: Files, stop: Stop, moment: Moment, folder: str = journals.STATE, tell: Tell = lambda what: None
) -> ApplyRun:
    """Carry the plan out. Raises Unready (nothing was changed), OSError where no journal could be begun (nothing was changed)."""
    header = Header(
        schema=journals.SCHEMA,
        version=moment.version,
        time=moment.time,
        boot_id=moment.boot_id,
        rules=tuple(dict.fromkeys(rule for change in plan.changes for rule in change.rules)),
        changes=tuple(change.key for change in plan.changes),
        entries=prepare.entries(plan),
        asked_by={change.key: change.rules[0] for change in plan.changes if change.rules},
    )
    journal = journals.begin(folder, header)
    try:
        outcome = runner.carry_out(journal, files, stop, tell)
        journal.note("applied", time=moment.time)
    except runner.Interrupted:
        return _back(journal, "interrupted", moment, tell)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _back(journal, f"{where}{error.strerror or error}", moment, tell)
    return ApplyRun(number=journal.number, failed=outcome.failed, left=outcome.left)


def _back(journal: Journal, why: str, moment: Moment, tell: Tell) -> ApplyRun:
    undone = undo.undo(journal, same_boot=True, time=moment.time, tell=tell)
    if not undone.failed:
        with contextlib.suppress(OSError):
            journal.note("rolled-back", why=why, time=moment.time)
    return ApplyRun(number=journal.number, failed={}, rolled_back=why, kept={**undone.kept, **undone.failed})


def enter(texts: tuple[str, ...], number: int | None, moment: Moment, folder: str = journals.STATE) -> Journal:
    """Enter what somebody else changed: in that run, else in the last one that is open, else in a run of its own.

    Raises DamagedJournal, NoJournals, OSError.
    """
    journal = _open(number, folder)
    if journal is None:
        header = Header(
            schema=journals.SCHEMA,
            version=moment.version,
            time=moment.time,
            boot_id=moment.boot_id,
            rules=(),
            changes=(),
            entries=(),
        )
        journal = journals.begin(folder, header)
        journal.note("applied", time=moment.time)
    for text in texts:
        if text not in journal.elsewhere:
            journal.note(journals.ELSEWHERE, why=text, time=moment.time)
    return journal


def _open(number: int | None, folder: str) -> Journal | None:
    if number is not None:
        return journals.load(folder, number)
    runs = (journals.load(folder, each) for each in reversed(journals.numbers(folder)))
    return next((run for run in runs if run.state == "applied"), None)


def unfinished(folder: str = journals.STATE) -> Journal | None:
    """Return a run that was cut off and not undone. Raises DamagedJournal."""
    for number in reversed(journals.numbers(folder)):
        found = journals.load(folder, number)
        if found.state == "interrupted":
            return found
    return None


def made_before(boot_id: str, folder: str = journals.STATE) -> MadeBefore:
    """Return the changes that runs made and nobody undid. Raises DamagedJournal, NoJournals."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for number in journals.numbers(folder):
        journal = journals.load(folder, number)
        entries = enumerate(journal.header.entries) if journal.state == "applied" else ()
        done = [entry for place, entry in entries if (note := journal.last(place)) is not None and note.what == "done"]
        found[journal.header.boot_id == boot_id].update(
            key for entry in done for key in (entry.changes if isinstance(entry, FileEntry) else (entry.change,))
        )
    return MadeBefore(since_start=frozenset(found[True]), earlier=frozenset(found[False]))
