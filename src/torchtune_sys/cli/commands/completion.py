"""``torchtune-sys completion SHELL``."""

from __future__ import annotations

import click

from torchtune_sys import PROGRAM
from torchtune_sys.cli import options as shared
from torchtune_sys.cli.main import COMPLETE, cli
from torchtune_sys.cli.terminal import say


@shared.command(
    "completion",
    epilog="""\b
Examples:
  eval "$(torchtune-sys completion bash)"                     in ~/.bashrc
  eval "$(torchtune-sys completion zsh)"                      in ~/.zshrc
  torchtune-sys completion fish > ~/.config/fish/completions/torchtune-sys.fish
""",
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")), metavar="SHELL")
def command(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    script = made(cli, {}, PROGRAM, COMPLETE)
    words = script.source_template % script.source_vars()
    # click's script for fish takes what stands between the first two commas: of a list of rules, its first
    say(words.replace('string split "," ', 'string split --max 1 "," ') + "\n")
