"""``torchtune-sys explain RULE``."""

from __future__ import annotations

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style


@shared.command("explain", epilog="\b\nExample:\n  torchtune-sys explain dev-shm-too-small")
@click.argument("rule", shell_complete=shared.complete_rules)
@shared.format_option("text", "json")
@shared.output_option
@shared.color_option
def command(rule: str, format_: str, output: str | None, color: str) -> None:
    """Explain RULE: why it matters, when to ignore it, its sources, parameters and fixes."""
    from torchtune_sys.rules import CATALOGUE
    from torchtune_sys.rules.profiles import rule_named

    found = rule_named(CATALOGUE, rule)
    if format_ == "json":
        from torchtune_sys.render import as_json

        give(as_json.rules((found,)), output, machine=True)
        return
    from torchtune_sys.render import explain

    give(explain.render(found, style(color, output)), output)
