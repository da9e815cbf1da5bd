"""Text of the results of ``apply``, ``undo`` and ``history``."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from torchtune_sys.model.actions import Needs
from torchtune_sys.model.plan import Change, Plan
from torchtune_sys.model.run import LostAtBoot, SettingOutcome, State
from torchtune_sys.remediation.apply.entries import CommandEntry, Entry, FileEntry, UnitEntry, ValueEntry, name
from torchtune_sys.remediation.apply.journal import Journal
from torchtune_sys.remediation.apply.undo import Undone
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Line, Style, line

_HANG = 8
ELSEWHERE = "not undone: it was not done by torchtune-sys"
_STYLES = {State.CURED: "good", State.LOST_AT_BOOT: "warning", State.WAITS: "advice", State.FAILED: "error"}


def outcomes(
    plan: Plan,
    still_asked: frozenset[str],
    lost: Mapping[str, LostAtBoot],
    failed: Mapping[str, str],
    left: Mapping[str, str] = {},
    unjudged: Mapping[str, str] = {},
) -> tuple[SettingOutcome, ...]:
    """Return the outcome of each setting. Cured is what the rules do not ask for any more, unless the next boot takes it back (``lost``: key → who does),
    or a rule could not be checked again (``unjudged``: rule → why)."""
    found = (outcome(change, *_became(change, still_asked, lost, failed, left, unjudged)) for change in plan.changes)
    return tuple(
        replace(one, needs=lost[one.key].words, remedy=lost[one.key].remedy) if one.state is State.LOST_AT_BOOT else one
        for one in found
    )


def outcome(change: Change, state: State, detail: str) -> SettingOutcome:
    """Return one entry of the report of a run."""
    return SettingOutcome(
        key=change.key,
        rule=change.rules[0],
        state=state,
        seen=change.seen,
        wanted=change.wanted,
        needs=change.needs.value,
        detail=detail,
    )


def _became(
    change: Change,
    still_asked: frozenset[str],
    lost: Mapping[str, LostAtBoot],
    failed: Mapping[str, str],
    left: Mapping[str, str],
    unjudged: Mapping[str, str],
) -> tuple[State, str]:
    rules = ", ".join(change.rules)
    is_asked = change.key in still_asked
    if change.key in failed:
        return State.FAILED, failed[change.key]
    if not is_asked and (unknown := [f"{rule}: {unjudged[rule]}" for rule in change.rules if rule in unjudged]):
        return State.FAILED, f"was made, but could not be checked again: {'; '.join(unknown)}"
    if change.key in lost:
        now = "written, and without effect" if is_asked else "cured now, lost at the next boot"
        return State.LOST_AT_BOOT, f"{rules}; {now}: {lost[change.key].words}"
    if change.needs is not Needs.NOTHING:  # a rule may judge by the file, which a daemon reads when it starts
        return State.WAITS, f"takes effect after: {change.needs.value}"
    if is_asked:
        return State.FAILED, f"was made, but {rules} finds the same as before"
    return State.CURED, "; ".join([rules, *([left[change.key]] if change.key in left else [])])


def not_made(whole: Plan, left_out: Mapping[str, str]) -> tuple[SettingOutcome, ...]:
    """Return what the run leaves alone: refused, left out, or made earlier and waiting."""
    refused = (
        SettingOutcome(
            key=refusal.key,
            rule=refusal.rules[0],
            state=State.REFUSED,
            seen="",
            wanted="",
            unwritable=refusal.unwritable,
            detail=f"{refusal.reason} ({refusal.way})",
        )
        for refusal in whole.refused
    )
    left = (outcome(change, State.LEFT, left_out[change.key]) for change in whole.changes if change.key in left_out)
    # Made by an earlier run: this one changed nothing of it.
    waits = (outcome(change, State.LEFT, f"made already; takes effect after: {change.needs.value}") for change in whole.waiting)
    return (*refused, *left, *(replace(one, made_already=True) for one in waits))


def settings_undone(journal: Journal, result: Undone) -> tuple[SettingOutcome, ...]:
    """Return the outcome by setting: restored only if all that belongs to it was; what somebody else changed for the run stays."""
    found = []
    for key in journal.header.changes:
        entries = [entry for entry in journal.header.entries if key in _changes(entry)]
        names = [name(entry) for entry in entries]
        failed = [f"{n}: {result.failed[n]}" for n in names if n in result.failed]
        kept = [f"{n}: {result.kept[n]}" for n in names if n in result.kept]
        value = next((entry for entry in entries if isinstance(entry, ValueEntry)), None)
        found.append(
            SettingOutcome(
                key=key,
                rule=journal.header.asked_by.get(key, ""),
                state=State.FAILED if failed else State.LEFT if kept else State.RESTORED,
                seen=value.value if value else "",
                wanted=value.before if value else "as it was",
                detail="; ".join([*failed, *kept]),
            )
        )
    found += [
        SettingOutcome(key=text, rule="", state=State.LEFT, seen="", wanted="", detail=ELSEWHERE) for text in result.elsewhere
    ]
    return tuple(found)


def _changes(entry: Entry) -> tuple[str, ...]:
    return entry.changes if isinstance(entry, FileEntry) else (entry.change,)


def text(found: tuple[SettingOutcome, ...], number: int, style: Style) -> str:
    counts = {state: sum(outcome.state is state for outcome in found) for state in _STYLES}
    counted = ", ".join(f"{number} {state.value}" for state, number in counts.items() if number)
    lines: list[Line] = [line(), line((f"Run {number}: {counted}", "bold"))]
    for outcome in found:
        label = (outcome.state.value, _STYLES[outcome.state])
        hang = max(_HANG, len(outcome.state.value) + 1)
        lines.append(line((outcome.key, "bold"), f": {outcome.detail}", label=label, hang=hang))
    lines.append(line(f"torchtune-sys undo {number} takes it back.", label=("Next", "bold"), hang=_HANG))
    return layout.render(lines, style)


def rolled_back(why: str, kept: Mapping[str, str], style: Style) -> str:
    lines = [line(), line((f"Nothing was left changed: {why}; what was done already was taken back.", "warning"))]
    if kept:
        lines = [line(), line((f"Stopped: {why}; not all could be taken back.", "error"))]
        lines += [line((path, "bold"), f": {reason}", indent=2, hang=_HANG) for path, reason in kept.items()]
    return layout.render(lines, style)


def intention(journal: Journal, result: Undone, style: Style) -> str:
    """Return what undoing a run would do, as a dry run of it found."""
    head = journal.header
    rules = ", ".join(head.rules)
    lines = [line((f"Run {journal.number} of {head.time} ({journal.state})", "bold"), f": {rules}")]
    lines += [line(_before(entry), indent=2, hang=_HANG) for entry in reversed(head.entries) if name(entry) in result.restored]
    for label, found in (("left", result.kept), ("fails", result.failed)):
        lines += [line((path, "bold"), f": {why}", label=(label, "warning"), hang=_HANG) for path, why in found.items()]
    lines += [line(f"{text}: stays, it was not done by torchtune-sys", indent=2, hang=_HANG) for text in journal.elsewhere]
    if len(lines) == 1:
        lines.append(line("everything is as it was already", indent=2, hang=_HANG))
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
    whole = not (result.kept or result.failed or result.elsewhere)
    words = f"Run {number} undone: everything is as it was" if whole else f"Run {number} undone in part"
    lines = [line((f"{words} ({len(result.restored)} restored)", "good" if whole else "warning"))]
    for label, found in (("left", result.kept), ("failed", result.failed)):
        lines += [line((path, "bold"), f": {why}", label=(label, "warning"), hang=_HANG) for path, why in found.items()]
    lines += [line((text, "bold"), f": {ELSEWHERE}", label=("left", "warning"), hang=_HANG) for text in result.elsewhere]
    if result.failed:
        lines.append(line(f"torchtune-sys undo {number} tries again what failed.", label=("Next", "bold"), hang=_HANG))
    return layout.render(lines, style)


def history(journals: tuple[Journal, ...], style: Style) -> str:
    if not journals:
        return "Nothing was applied on this host.\n"
    lines = [line(_run(journal), label=(f"{journal.number:>4}", "bold"), hang=6) for journal in journals]
    return layout.render(lines, style)


def _run(journal: Journal) -> str:
    """One run of the history."""
    changes = journal.header.changes
    left = ", ".join(name(journal.header.entries[entry]) for entry in journal.kept)
    left = f" (but what was changed since: {left})" if left else ""
    made = [f"{len(changes)} {'change' if len(changes) == 1 else 'changes'}: {', '.join(changes)}"] if changes else []
    made += [f"done by others: {', '.join(journal.elsewhere)}"] if journal.elsewhere else []
    return f"{journal.header.time}  {journal.state}{left}: {'; '.join(made)}"


def runs(journals: tuple[Journal, ...]) -> list[dict[str, object]]:
    """Return the runs as data."""
    return [
        {
            "run": journal.number,
            "time": journal.header.time,
            "state": journal.state,
            "rules": journal.header.rules,
            "changes": journal.header.changes,
            "left": [name(journal.header.entries[entry]) for entry in journal.kept],
            "elsewhere": journal.elsewhere,
        }
        for journal in journals
    ]
