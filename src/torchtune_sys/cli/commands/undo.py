"""``torchtune-sys undo``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import require_output, say, style
from torchtune_sys.errors import AGAIN_AS_ROOT, UserError

if TYPE_CHECKING:
    from torchtune_sys.model.run import SettingOutcome
    from torchtune_sys.remediation.apply.journal import Journal


class LaterRun(UserError):
    """Undoing would take away what a later run built upon."""

    exit_code = 1


@shared.command(
    "undo",
    epilog="""\b
Examples:
  sudo torchtune-sys undo            the last run that was not undone
  sudo torchtune-sys undo 3 --yes
  sudo torchtune-sys undo --all

\b
What somebody else has changed since is left alone and reported. Undo also
works after a crash or a power cut of apply, and may be repeated.

Exit status: 0 everything is restored; 1 something was left alone or could not
be restored, or you said no; 2 usage error; 3 the journal is damaged;
4 internal error.
""",
)
@click.argument("run", type=click.IntRange(min=1), required=False)
@click.option("--all", "all_", is_flag=True, help="Undo every run, most recent first.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be restored; change nothing.")
@shared.wait_option
@shared.format_option("text", "json")
@shared.color_option
def command(**options: Any) -> int:
    """Restore what apply changed: files byte for byte, and running values."""
    from torchtune_sys.cli import confirm as changing
    from torchtune_sys.cli.privilege import is_root
    from torchtune_sys.remediation.apply import journal

    if options["run"] and options["all_"]:
        raise UserError("--all undoes every run, and RUN names one", "give one of them")
    if not is_root():
        raise UserError("undoing needs root", AGAIN_AS_ROOT)
    if not journal.numbers(journal.STATE) and not options["run"]:
        _nothing("Nothing was applied on this host, so there is nothing to undo.", options)
        return 0
    try:
        with changing.progress_lines() as tell, changing.alone(options["wait"], tell):
            return _undo(options, tell)
    except OSError as error:
        raise changing.NotMade(f"{error.filename or journal.STATE}: {error.strerror}", "nothing was changed") from None


def _undo(options: dict[str, Any], tell: Callable[[str], None]) -> int:
    from torchtune_sys.cli import confirm as changing
    from torchtune_sys.cli.privilege import boot_id
    from torchtune_sys.cli.take_snapshot import now
    from torchtune_sys.remediation.apply import undo
    from torchtune_sys.render import run as run_text

    found = _chosen(options)
    if not found:
        _nothing(f"Run {options['run']} was undone already." if options["run"] else "Every run was undone already.", options)
        return 0
    look, text = style(options["color"], is_here=True), options["format_"] == "text"
    changes: list[SettingOutcome] = []
    foreseen = undo.Foreseen()
    for journal in found:
        result = undo.undo(journal, same_boot=journal.header.boot_id == boot_id(), dry=foreseen)
        changes += run_text.settings_undone(journal, result)
        if text:
            say(run_text.intention(journal, result, look))
    if options["dry_run"]:
        _give(found[0].number, changes, options)
        return 0
    require_output(None)
    changing.ask("Undo it?", yes=options["yes"])
    status, changes = 0, []
    for journal in found:
        result = undo.undo(journal, same_boot=journal.header.boot_id == boot_id(), time=now()[0], tell=tell)
        tell("")
        if text:
            say(run_text.undone(journal.number, result, look))
        changes += run_text.settings_undone(journal, result)
        status = max(status, int(bool(result.kept or result.failed or result.elsewhere)))
    _give(found[0].number, changes, options)
    return status


def _nothing(words: str, options: dict[str, Any]) -> None:
    if options["format_"] == "text":
        click.echo(words)
    _give(None, [], options)


def _give(run: int | None, changes: list[SettingOutcome], options: dict[str, Any]) -> None:
    if options["format_"] == "json":
        from torchtune_sys.model.run import RunReport
        from torchtune_sys.render import as_json

        say(as_json.run(RunReport(run=run, changes=tuple(changes))), machine=True)


def _chosen(options: dict[str, Any]) -> list[Journal]:
    from torchtune_sys.remediation.apply import journal

    numbers = journal.numbers(journal.STATE)
    if options["run"]:
        return _one(options["run"], numbers)
    open_ = []
    for number in reversed(numbers):
        if (found := journal.load(journal.STATE, number)).is_open:
            open_.append(found)
            if not options["all_"]:
                break
    return open_


def _one(run: int, numbers: list[int]) -> list[Journal]:
    """Return the run, unless nothing of it is left to undo, or a later one changed the same again."""
    from torchtune_sys.remediation.apply import journal

    if run not in numbers:
        raise UserError(f"there is no run {run}", "torchtune-sys history lists them")
    found = journal.load(journal.STATE, run)
    if not found.is_open and not found.kept:
        return []
    for number in reversed(numbers[numbers.index(run) + 1 :]):
        later = journal.load(journal.STATE, number)
        both = sorted(later.touched & found.touched)
        if later.is_open and both:
            raise LaterRun(
                f"run {number} changed {both[0]} after run {run}, so nothing was undone",
                f"torchtune-sys undo {number} undoes that first; torchtune-sys undo --all undoes every run",
            )
    return [found]
