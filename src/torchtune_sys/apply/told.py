"""What became of the changes, and of taking them back, in words."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from torchtune_sys.apply.entries import CommandEntry, Entry, FileEntry, UnitEntry, ValueEntry
from torchtune_sys.apply.journal import Journal
from torchtune_sys.apply.undo import Undone, name
from torchtune_sys.model.actions import Needs
from torchtune_sys.model.plan import Change, Plan
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Line, Style, line

_HANG = 8
_STYLES = {"cured": "good", "waits": "advice", "failed": "error"}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    what: str
    """``cured``, ``waits`` or ``failed``."""
    detail: str


def outcomes(
    plan: Plan, still_asked: frozenset[str], failed: Mapping[str, str], left: Mapping[str, str] = {}
) -> tuple[Outcome, ...]:
    """Cured is what the rules do not ask for any more."""
    found = []
    for change in plan.changes:
        if change.key in failed:
            found.append(Outcome(key=change.key, what="failed", detail=failed[change.key]))
        elif change.key not in still_asked:
            found.append(
                Outcome(key=change.key, what="cured", detail="; ".join([", ".join(change.rules), *_found(change, left)]))
            )
        elif change.needs is not Needs.NOTHING:
            found.append(Outcome(key=change.key, what="waits", detail=f"takes effect after: {change.needs.value}"))
        else:
            rules = ", ".join(change.rules)
            found.append(Outcome(key=change.key, what="failed", detail=f"was made, but {rules} finds the same as before"))
    return tuple(found)


def _found(change: Change, left: Mapping[str, str]) -> tuple[str, ...]:
    """What the run found as good already."""
    return (left[change.key],) if change.key in left else ()


def text(found: tuple[Outcome, ...], number: int, style: Style) -> str:
    counts = {what: sum(outcome.what == what for outcome in found) for what in _STYLES}
    told = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    lines: list[Line] = [line(), line((f"Run {number}: {told}", "bold"))]
    for outcome in found:
        label = (outcome.what, _STYLES[outcome.what])
        lines.append(line((outcome.key, "bold"), f": {outcome.detail}", label=label, hang=_HANG))
    lines.append(line(f"torchtune-sys undo {number} takes it back.", label=("Next", "bold"), hang=_HANG))
    return layout.render(lines, style)


def rolled_back(why: str, kept: Mapping[str, str], style: Style) -> str:
    lines = [line(), line((f"Nothing was left changed: {why}; what was done already was taken back.", "warning"))]
    if kept:
        lines = [line(), line((f"Stopped: {why}; not all could be taken back.", "error"))]
        lines += [line((path, "bold"), f": {reason}", indent=2, hang=_HANG) for path, reason in kept.items()]
    return layout.render(lines, style)


def intention(journal: Journal, style: Style) -> str:
    """What undoing a run would restore."""
    head = journal.header
    rules = ", ".join(head.rules)
    lines = [line((f"Run {journal.number} of {head.time} ({journal.state})", "bold"), f": {rules}")]
    lines += [line(f"{_before(entry)}", indent=2, hang=_HANG) for entry in reversed(head.entries)]
    return layout.render(lines, style)


def _before(entry: Entry) -> str:
    match entry:
        case ValueEntry(path=path, before=before):
            return f"{path}: back to {before}"
        case FileEntry(path=path, before=None):
            return f"{path}: removed"
        case FileEntry(path=path):
            return f"{path}: as it was"
        case UnitEntry(unit=unit, was_enabled=enabled, was_active=active):
            return f"{unit}: {'enabled' if enabled else 'disabled'}, {'running' if active else 'stopped'}"
        case CommandEntry(undo=undo):
            return " ".join(undo)


def undone(number: int, result: Undone, style: Style) -> str:
    whole = not (result.kept or result.failed)
    words = f"Run {number} undone: everything is as it was" if whole else f"Run {number} undone in part"
    lines = [line((f"{words} ({len(result.restored)} restored)", "good" if whole else "warning"))]
    for label, found in (("left", result.kept), ("failed", result.failed)):
        lines += [line((path, "bold"), f": {why}", label=(label, "warning"), hang=_HANG) for path, why in found.items()]
    if result.failed:
        lines.append(line(f"torchtune-sys undo {number} tries again what failed.", label=("Next", "bold"), hang=_HANG))
    return layout.render(lines, style)


def history(journals: tuple[Journal, ...], style: Style) -> str:
    if not journals:
        return "Nothing was applied on this host.\n"
    lines = []
    for journal in journals:
        changes = journal.header.changes
        left = ", ".join(name(journal.header.entries[entry]) for entry in journal.kept)
        left = f" (but what was changed since: {left})" if left else ""
        lines.append(
            line(
                f"{journal.header.time}  {journal.state}{left}: {len(changes)} {'change' if len(changes) == 1 else 'changes'}: {', '.join(changes)}",
                label=(f"{journal.number:>4}", "bold"),
                hang=6,
            )
        )
    return layout.render(lines, style)


def runs(journals: tuple[Journal, ...]) -> list[dict[str, object]]:
    """The runs as data."""
    return [
        {
            "run": journal.number,
            "time": journal.header.time,
            "state": journal.state,
            "rules": journal.header.rules,
            "changes": journal.header.changes,
            "left": [name(journal.header.entries[entry]) for entry in journal.kept],
        }
        for journal in journals
    ]
