"""``torchtune-sys explain RULE``, or the cause that another command named."""

from __future__ import annotations

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style
from torchtune_sys.errors import UnknownName, nearest


@shared.command(
    "explain",
    epilog="\b\nExamples:\n  torchtune-sys explain dev-shm-too-small\n  torchtune-sys explain host-memory-oom        a cause that diagnose named",
)
@click.argument("rule", shell_complete=shared.complete_rules_and_causes)
@shared.format_option("text", "json")
@shared.output_option
@shared.color_option
def command(rule: str, format_: str, output: str | None, color: str) -> None:
    """Explain RULE, or a cause: why it matters, when to ignore it, its sources, parameters and fixes."""
    from torchtune_sys.knowledge.causes import cause_rows, messages_of
    from torchtune_sys.render import as_json, explain
    from torchtune_sys.rules import CATALOGUE, by_id

    found, row = by_id().get(rule), cause_rows().get(rule)
    if found is not None:
        text = as_json.rules((found,)) if format_ == "json" else explain.render(found, style(color, output))
    elif row is not None:
        finders = tuple(each for each in CATALOGUE if each.cause == row.cause)
        text = (
            as_json.cause(row, finders)
            if format_ == "json"
            else explain.cause(row, finders, messages_of(row.cause), style(color, output))
        )
    else:
        known = [*by_id(), *cause_rows()]
        raise UnknownName(f"no rule or cause is called {rule!r}", nearest(rule, known, "torchtune-sys rules lists the rules", 3))
    give(text, output, machine=format_ == "json")
