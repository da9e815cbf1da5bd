"""``torchtune-sys history``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.errors import UserError


@click.command("history")
@shared.format_option("text", "json")
@shared.output_option
@shared.color_option
def command(**options: Any) -> int:
    """List what was applied on this host, and what became of it."""
    from torchtune_sys.apply import journal, told
    from torchtune_sys.cli.terminal import give, style

    try:
        found = tuple(journal.load(journal.STATE, number) for number in journal.numbers(journal.STATE))
    except PermissionError:
        raise UserError(f"{journal.STATE} may be read by root only", "run it again with sudo") from None
    if options["format_"] == "json":
        from torchtune_sys.render import as_json

        give(as_json.history(told.runs(found)), options["output"], machine=True)
    else:
        give(told.history(found, style(options["color"], options["output"])), options["output"])
    return 0
