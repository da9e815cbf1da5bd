"""``torchtune-sys rules``."""

from __future__ import annotations

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.names import speaks_of
from torchtune_sys.cli.terminal import give, style
from torchtune_sys.errors import UnknownName, UserError


@shared.command(
    "rules",
    epilog="""\b
Examples:
  torchtune-sys rules --select error
  torchtune-sys rules --search 'shared memory'
  torchtune-sys rules --select 'nccl-*' --format json
""",
)
@shared.selection_options
@click.option("--search", metavar="TEXT", help="List only rules with all these words in their id, title or explanation.")
@shared.format_option("text", "json")
@shared.output_option
@shared.color_option
def command(
    select: tuple[str, ...], ignore: tuple[str, ...], search: str | None, format_: str, output: str | None, color: str
) -> None:
    """List the rules by family, with severity and title."""
    from torchtune_sys.rules import CATALOGUE
    from torchtune_sys.rules.profiles import Config, choose

    if search is not None and not search.strip():
        raise UserError("--search is empty", "give a word: torchtune-sys rules --search 'shared memory'")
    chosen = choose(CATALOGUE, Config(), select=select, ignore=ignore).rules
    if search is not None:
        chosen = tuple(rule for rule in chosen if speaks_of(rule, search))
        if not chosen:
            raise UnknownName(f"no rule speaks of {search!r}", "give fewer or other words; torchtune-sys rules lists the rules")
    if format_ == "json":
        from torchtune_sys.render import as_json

        give(as_json.rules(chosen), output, machine=True)
        return
    from torchtune_sys.render import explain

    give(explain.table(chosen, style(color, output)), output)
