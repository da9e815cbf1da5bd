"""``torchtune-sys rules``."""

from __future__ import annotations

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style


@shared.command(
    "rules", epilog="\b\nExamples:\n  torchtune-sys rules --select error\n  torchtune-sys rules --select 'nccl-*' --format json"
)
@shared.selection_options
@shared.format_option("text", "json")
@shared.output_option
@shared.color_option
def command(select: tuple[str, ...], ignore: tuple[str, ...], format_: str, output: str | None, color: str) -> None:
    """List the rules by family, with severity and title."""
    from torchtune_sys.rules import CATALOGUE
    from torchtune_sys.rules.profiles import Config, choose

    chosen = choose(CATALOGUE, Config(), select=select, ignore=ignore).rules
    if format_ == "json":
        from torchtune_sys.render import as_json

        give(as_json.rules(chosen), output, machine=True)
        return
    from torchtune_sys.render import explain

    give(explain.table(chosen, style(color, output)), output)
