"""``torchtune-sys help``."""

from __future__ import annotations

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.help import Command
from torchtune_sys.cli.terminal import give


@shared.command(
    "help",
    epilog="""\b
Examples:
  torchtune-sys help check
  torchtune-sys help generate script
""",
)
@click.argument("names", nargs=-1, metavar="[COMMAND]...", shell_complete=lambda *about: _complete(*about))
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> int:
    """Show all of a command's help, which "COMMAND --help" shows in short."""
    assert ctx.parent is not None
    found = ctx.parent
    for name in names:
        group = found.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{found.command_path} has no commands below it.", ctx=found)
        command = group.get_command(found, name)
        assert command is not None  # a name that there is not was refused
        found = click.Context(command, info_name=name, parent=found)
    text = found.command.whole_help(found) if isinstance(found.command, Command) else found.command.get_help(found)
    give(text + "\n", None)
    return 0


def _complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    group: click.Command | None = ctx.find_root().command
    for name in ctx.params.get("names") or ():
        group = group.get_command(ctx, name) if isinstance(group, click.Group) else None
    return [name for name in group.list_commands(ctx) if name.startswith(incomplete)] if isinstance(group, click.Group) else []
