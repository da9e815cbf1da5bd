"""Make the planned changes of a host, judge it again, and say what became of each change."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from torchtune_sys import __version__
from torchtune_sys.cli import confirm, selection
from torchtune_sys.cli.confirm import NotMade
from torchtune_sys.cli.names import rule_names
from torchtune_sys.cli.pipeline import judged
from torchtune_sys.cli.planning import Planned, planned
from torchtune_sys.cli.planning import unjudged as unjudged_rules
from torchtune_sys.cli.privilege import boot_id, is_root
from torchtune_sys.cli.take_snapshot import now
from torchtune_sys.cli.terminal import require_output, say, style, tell
from torchtune_sys.cli.watch import heeded_signals
from torchtune_sys.errors import AGAIN_AS_ROOT, Terminated, UserError
from torchtune_sys.model.plan import NOTHING_MADE, FileDiff, Plan
from torchtune_sys.model.run import RunReport, SettingOutcome, State
from torchtune_sys.model.smoke import SmokeReport
from torchtune_sys.remediation import plan as planner
from torchtune_sys.remediation.apply import journal, prepare, session
from torchtune_sys.remediation.apply.session import ApplyRun
from torchtune_sys.remediation.plan.precedence import lost_at_boot
from torchtune_sys.render import as_json
from torchtune_sys.render import plan as shown
from torchtune_sys.render import run as run_text
from torchtune_sys.render.layout import row

DONE, NOT_ALL, LOST_AT_BOOT = 0, 1, 5


class NeedsRoot(UserError):
    """Only root may change a host."""


def apply(options: dict[str, Any]) -> int:
    """Return the exit status of ``apply``. Raises UserError."""
    options |= {"from_": None, "root": None}
    root = is_root()
    earlier = journal.numbers(journal.STATE) if root else []
    found = planned(options, session.made_before(boot_id()) if root else NOTHING_MADE)
    plan, left_out = selection.selected_changes(found, options)
    late = [] if options["only"] else [one for one in found.plan.unjudged if one.late]
    if _as_json(options):
        if options["prove"]:
            raise UserError("--prove asks a person in the end, so it does not go with --format json", "leave out one of them")
    else:
        _show(plan, left_out, options, is_whole=not late)
    unread = selection.tell_unjudged(late)
    if options["dry_run"]:
        _give_dry(found, plan, left_out, options)
        return unread
    status = NOT_ALL if selection.not_made(found, plan, options) else unread
    if not plan.changes:
        _give(None, _others(found, left_out, options), found, options)
        return status
    if not root:
        raise NeedsRoot("changing this host needs root", f"{AGAIN_AS_ROOT}, or look with --dry-run")
    require_output(None)
    confirm.ask("Make these changes?", yes=options["yes"])
    before = _proofs(options) if options["prove"] else []
    run = _run(found, plan, earlier, options)
    try:
        codes = {_tell(run, found, plan, left_out, options), status, _proven(run, before, options)}
    except (MemoryError, KeyboardInterrupt, Terminated):  # whoever sees no more than that must learn that the host was changed
        if not run.rolled_back:
            tell(f"run {run.number} was made, and is not looked at; torchtune-sys undo {run.number} takes it back")
        raise
    return NOT_ALL if NOT_ALL in codes else max(codes)


def _as_json(options: dict[str, Any]) -> bool:
    return bool(options["format_"] == "json")


def _others(found: Planned, left_out: dict[str, str], options: dict[str, Any]) -> tuple[SettingOutcome, ...]:
    """Return what is not in the plan that is carried out: of the rules that were named, where some were."""
    only = rule_names(options["only"])
    outcomes = run_text.not_made(found.plan, left_out)
    plan = found.plan
    keys = {refusal.key for refusal in plan.refused if set(refusal.rules) & only}
    keys |= {change.key for change in (*plan.changes, *plan.waiting) if set(change.rules) & only}
    return tuple(outcome for outcome in outcomes if not only or outcome.key in keys)


def _give(
    run: int | None,
    outcomes: tuple[SettingOutcome, ...],
    found: Planned,
    options: dict[str, Any],
    diff: tuple[FileDiff, ...] = (),
) -> None:
    if _as_json(options):
        only = rule_names(options["only"])
        unjudged = tuple(one for one in found.plan.unjudged if not only or one.rule in only)
        say(as_json.run(RunReport(run=run, changes=outcomes, diff=diff, unjudged=unjudged)), machine=True)


def _give_dry(found: Planned, plan: Plan, left_out: dict[str, str], options: dict[str, Any]) -> None:
    if not _as_json(options):
        _show_diff(plan)
        return
    would = tuple(run_text.outcome(change, State.LEFT, "would be changed (--dry-run)") for change in plan.changes)
    _give(None, (*would, *_others(found, left_out, options)), found, options, shown.differences(plan))


def _proofs(options: dict[str, Any]) -> list[SmokeReport]:
    """Run the smoke test twice; a single run does not show how much its figures vary."""
    from torchtune_sys.cli.prove import smoke_report

    return [smoke_report(options, "before the changes"), smoke_report(options, "and again")]


def _proven(run: ApplyRun, before: list[SmokeReport], options: dict[str, Any]) -> int:
    """Return the status: whether training is at least as good as before. If not, offer undo."""
    from torchtune_sys.cli.prove import offer_undo, regressions

    if not before or run.rolled_back:
        return DONE
    found = regressions(options, before)
    if not found:
        return DONE
    if offer_undo(found, run.number):
        from torchtune_sys.cli.commands.undo import command as undo

        undo.main([str(run.number), "--yes"], standalone_mode=False)
    return NOT_ALL


def _show(plan: Plan, left_out: dict[str, str], options: dict[str, Any], *, is_whole: bool) -> None:
    say(
        shown.text(plan, style(options["color"], is_here=True), closing=False, is_whole=is_whole)
        + "".join(row(f"left out: {key} ({why})") for key, why in left_out.items())
    )


def _show_diff(plan: Plan) -> None:
    say("\n" + shown.diff(plan) + "Nothing was changed (--dry-run).\n")


def _run(found: Planned, plan: Plan, earlier: list[int], options: dict[str, Any]) -> ApplyRun:
    try:
        with confirm.progress_lines() as tell, confirm.alone(options["wait"], tell), _stopping() as stop:
            tell("reading the current state")
            unfinished = session.unfinished()
            if unfinished is not None:
                raise NotMade(
                    f"run {unfinished.number} was interrupted", f"undo it first: torchtune-sys undo {unfinished.number}"
                )
            if journal.numbers(journal.STATE) != earlier:
                raise NotMade("another run has changed this host in the meantime", "run torchtune-sys apply again")
            moment = session.Moment(version=__version__, time=now()[0], boot_id=boot_id())

            def files(failed: frozenset[str]) -> Any:
                return planner.part(plan, found.context, lambda change: change.key not in failed).files

            return session.run(plan, files, stop, moment, tell=tell)
    except prepare.Unready as error:
        raise NotMade(f"nothing was changed: {error}", "torchtune-sys plan shows what it is for; --ignore its rule") from None
    except OSError as error:
        raise NotMade(
            f"nothing was changed: {error.filename or journal.STATE}: {error.strerror}", "the journal must be written first"
        ) from None


@contextlib.contextmanager
def _stopping() -> Iterator[Any]:
    """Let Ctrl-C, SIGTERM and SIGHUP end the run between two steps, never within one."""
    asked: list[int] = []
    usual = {number: signal.signal(number, lambda got, _frame: asked.append(got)) for number in heeded_signals()}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def _tell(run: ApplyRun, found: Planned, plan: Plan, left_out: dict[str, str], options: dict[str, Any]) -> int:
    """Judge the host again, and report the outcome of each change."""
    if run.rolled_back:
        if not _as_json(options):
            say(run_text.rolled_back(run.rolled_back, run.kept, style(options["color"], is_here=True)))
        taken_back = tuple(run_text.outcome(change, State.FAILED, f"taken back: {run.rolled_back}") for change in plan.changes)
        _give(run.number, taken_back, found, options)
        return NOT_ALL
    seen, results, _ = judged(options)
    found_lost = {change.key: lost_at_boot(seen, found.context, change) for change in plan.changes}
    lost = {key: why for key, why in found_lost.items() if why is not None}
    unjudged = {one.rule: one.reason for one in unjudged_rules(results) if one.late}
    outcomes = run_text.outcomes(plan, planner.still_asked(results), lost, run.failed, run.left, unjudged)
    if not _as_json(options):
        say(run_text.text(outcomes, run.number, style(options["color"], is_here=True)))
    _give(run.number, (*outcomes, *_others(found, left_out, options)), found, options)
    states = {outcome.state for outcome in outcomes}
    return NOT_ALL if State.FAILED in states else LOST_AT_BOOT if State.LOST_AT_BOOT in states else DONE
