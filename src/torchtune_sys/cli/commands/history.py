"""``torchtune-sys history``."""

from __future__ import annotations

from typing import Any

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style, tell
from torchtune_sys.errors import UserError


@shared.command("history")
@shared.format_option("text", "json")
@shared.output_option
@shared.color_option
def command(**options: Any) -> int:
    """List the runs of apply and undo on this host."""
    from torchtune_sys.remediation.apply import journal
    from torchtune_sys.render import run as run_text

    numbers = journal.numbers(journal.STATE)
    damaged: list[UserError] = []
    readable = []
    for number in numbers:
        try:
            readable.append(journal.load(journal.STATE, number))
        except UserError as error:
            damaged.append(error)
    found = tuple(readable)
    if (gone := journal.missing(numbers)) is not None:
        damaged.append(gone)
    for number in journal.strays(journal.STATE):
        tell(f"torchtune-sys: {journal.STATE}/{number:04d}.journal is not the journal of a run: ignored")
    if damaged and not found:
        raise damaged[0]
    if options["format_"] == "json":
        from torchtune_sys.render import as_json

        give(as_json.history(run_text.runs(found)), options["output"], machine=True)
    else:
        give(run_text.history(found, style(options["color"], options["output"])), options["output"])
    for problem in damaged:
        tell(f"torchtune-sys: {problem.seen}", f"  {problem.todo}")
    return damaged[0].exit_code if damaged else 0
