"""``torchtune-sys explain RULE...``: rules, or causes that another command named."""

from __future__ import annotations

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.names import search_for
from torchtune_sys.cli.terminal import give, style
from torchtune_sys.errors import UnknownName, nearest


@shared.command(
    "explain",
    epilog="""\b
Examples:
  torchtune-sys explain dev-shm-too-small
  torchtune-sys explain swappiness-high swap-in-use   several at once
  torchtune-sys explain host-memory-oom               a cause, of diagnose
""",
)
@click.argument("names", nargs=-1, required=True, metavar="RULE...", shell_complete=shared.complete_rules_and_causes)
@shared.format_option("text", "json")
@shared.output_option
@shared.color_option
def command(names: tuple[str, ...], format_: str, output: str | None, color: str) -> None:
    """Explain each RULE, or cause: why it matters, when to ignore it, its sources, parameters and fixes."""
    from torchtune_sys.knowledge.causes import cause_rows, messages_of
    from torchtune_sys.render import as_json, explain
    from torchtune_sys.rules import CATALOGUE, by_id

    rules, causes = by_id(), cause_rows()
    for name in names:
        if name not in rules and name not in causes:
            known = [each for each in (*rules, *causes) if each != "none"]
            raise UnknownName(f"no rule or cause is called {name!r}", nearest(name, known, "", 5) or search_for(name))
    names = tuple(dict.fromkeys(names))
    finders = {name: tuple(each for each in CATALOGUE if each.cause == name) for name in names if name not in rules}
    if format_ == "json":
        asked = dict.fromkeys(rule for name in names for rule in (finders[name] if name in finders else (rules[name],)))
        text = as_json.rules(tuple(asked), tuple(causes[name] for name in finders))
    else:
        how = style(color, output)
        text = "\n".join(
            explain.cause(causes[name], finders[name], messages_of(name), how)
            if name in finders
            else explain.render(rules[name], how)
            for name in names
        )
    give(text, output, machine=format_ == "json")
