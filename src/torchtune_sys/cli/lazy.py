"""A group of commands, each in its own module that is imported only when the command is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from torchtune_sys import PROGRAM


class LazyGroup(click.Group):
    """Names and short help from a table: name → (module, or ``module:attribute`` where it is not ``command``; short help). Help costs click and nothing else."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.no_args_is_help = False
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            self._refuse(ctx, cmd_name)
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        found = getattr(__import__(module, fromlist=["_"]), attribute or "command")
        assert isinstance(found, click.Command)
        return found

    def _refuse(self, ctx: click.Context, name: str) -> None:
        if not ctx.resilient_parsing:
            from difflib import get_close_matches

            options = [option for param in self.get_params(ctx) for option in param.opts if option == f"--{name}"]
            close = options or get_close_matches(name, self.table, n=2, cutoff=0.8) or get_close_matches(name, self.table, n=2)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {' or '.join(close)}?" if close else ""))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        begun, called = len(formatter.buffer), ctx.find_root().info_name or PROGRAM
        super().format_help_text(ctx, formatter)
        if called != PROGRAM:
            from torchtune_sys.cli.help import started_here

            formatter.buffer[begun:] = [started_here(text, called) for text in formatter.buffer[begun:]]
        if self._has_examples():
            from torchtune_sys.cli.help import write_blocks

            write_blocks(ctx, formatter, examples=True)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self._has_examples():
            super().format_epilog(ctx, formatter)
            return
        from torchtune_sys.cli.help import write_blocks

        write_blocks(ctx, formatter, examples=False)

    def _has_examples(self) -> bool:
        return "Example" in (self.epilog or "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])
