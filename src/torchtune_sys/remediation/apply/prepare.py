"""Make journal entries from a plan: read the present state before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.model.actions import Sysctl, SysfsWrite
from torchtune_sys.model.plan import Change, CommandStep, FileLine, Plan, PlannedFile, Unit, Value
from torchtune_sys.remediation.apply import durable, units, values
from torchtune_sys.remediation.apply.entries import CommandEntry, Entry, FileEntry, UnitEntry, ValueEntry


class Unready(Exception):
    """A change cannot be made ready: what is there now could not be read."""

    def __init__(self, change: str, why: str) -> None:
        super().__init__(f"{change}: {why}")
        self.change = change
        self.why = why


def entries(plan: Plan) -> tuple[Entry, ...]:
    """Return the journal's entries, values first: a file must not keep what the kernel refused. Raises Unready."""
    found: list[Entry] = [entry for change in plan.changes for entry in _values(change)]
    found += [_file(file, plan.changes) for file in plan.files]
    found += [entry for change in plan.changes for entry in _others(change)]
    return tuple(found)


def _values(change: Change) -> Iterable[Entry]:
    for step in change.steps:
        if isinstance(step, Value):
            for path in values.matching(step.path, step.is_pattern):
                yield _value(change, path, step)


def _value(change: Change, path: str, step: Value) -> ValueEntry:
    try:
        before = values.read(path)
        counterpart_before = values.read(step.counterpart) if step.counterpart else ""
    except OSError as error:
        raise Unready(change.key, f"{path}: {error.strerror}") from None
    return ValueEntry(
        change=change.key,
        path=path,
        value=step.value,
        before=before,
        counterpart=step.counterpart,
        counterpart_before=counterpart_before,
        target=change.action.target if isinstance(change.action, Sysctl | SysfsWrite) else None,
    )


def _file(file: PlannedFile, changes: Iterable[Change]) -> FileEntry:
    asking = tuple(c.key for c in changes if any(isinstance(step, FileLine) and step.path == file.path for step in c.steps))
    try:
        durable.require_trusted_folder(file.path)
        before = durable.read(file.path)
    except OSError as error:
        raise Unready(asking[0], f"{file.path}: {error.strerror}") from None
    if (None if before is None else before.content) != (None if file.before is None else file.before.encode()):
        raise Unready(asking[0], f"{file.path}: was changed since the plan was made, or is not UTF-8 text")
    return FileEntry(changes=asking, path=file.path, before=before, made=durable.missing_folders(file.path), refresh=file.refresh)


def _others(change: Change) -> Iterable[Entry]:
    for step in change.steps:
        if isinstance(step, Unit):
            try:
                state = units.state(step.unit)
            except OSError as error:
                raise Unready(change.key, str(error)) from None
            yield UnitEntry(
                change=change.key, unit=step.unit, enabled=step.enabled, was_enabled=state.enabled, was_active=state.active
            )
        elif isinstance(step, CommandStep):
            yield CommandEntry(change=change.key, argv=step.argv, undo=step.undo)
