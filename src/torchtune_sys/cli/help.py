"""A command's help: on one screen with the examples first, and whole with ``--help-all``.

An epilog is made of blocks that each begin with ``\\b``; the one that begins with *Example* comes before the options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from torchtune_sys import PROGRAM
from torchtune_sys.errors import UserError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SCREEN = 24
"""Rows of the smallest terminal in use."""
_NAMES = 34
"""Columns for an option's names when it is shown in one row."""
HELP_ALL = "--help-all"


_PLACES = {"FILE": "file", "PATH": "file", "DIR": "dir"}
"""Metavar → what a shell completes it with."""


class _Text(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A text that says something: ``--only "$RULES"`` of a script in which the variable is not set would select all rules."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Raises UserError."""
        if value == "" and ctx and param and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            name = param.opts[-1] if isinstance(param, click.Option) else param.metavar or param.name
            raise UserError(f"{name} is empty", "give a value, or leave it out; is it a variable that is not set?")
        return str(value)


class _Place(_Text):
    """A name that the shell completes. click.Path does so too, and calls stat(2), which a dead file server keeps for ever."""

    name = "path"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=self._kind)]


class Command(click.Command):
    """``common``: the options that the short help explains, by their longest names; of the others it gives the names."""

    def __init__(self, *args: Any, common: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.common = tuple(common)
        for param in self.params:
            if param.type is not click.STRING:
                continue
            words = re.split(r"\W+", param.metavar or "")
            if kind := next((kind for word, kind in _PLACES.items() if word in words), ""):
                param.type = _Place(kind)
            elif isinstance(param, click.Option):
                param.type = _Text()
        self.params.append(
            click.Option(
                [HELP_ALL], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show the full help."
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser does not say of an option without its argument which command it is of
            raise

    def get_help(self, ctx: click.Context) -> str:
        whole = self.whole_help(ctx)
        return whole if len(whole.splitlines()) <= SCREEN else self._short_help(ctx)

    def whole_help(self, ctx: click.Context) -> str:
        formatter = ctx.make_formatter()
        self._begin(ctx, formatter)
        self.format_options(ctx, formatter)
        write_blocks(ctx, formatter, examples=False)
        return formatter.getvalue().rstrip("\n")

    def _begin(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        write_blocks(ctx, formatter, examples=True)

    def _short_help(self, ctx: click.Context) -> str:
        formatter = ctx.make_formatter()
        self._begin(ctx, formatter)
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option) and not option.hidden]
        left = SCREEN - len(formatter.getvalue().splitlines()) - _rows_of_more(options, formatter) - 4
        shown = [
            option for name in self.common for option in options if name in (*option.opts, *option.secondary_opts)
        ] or options
        rows = [_rows(option, ctx, formatter.width) for option in shown]
        while len(shown) > 1 and sum(map(len, rows)) > left:
            del shown[-1], rows[-1]
        with formatter.section("Options"):
            formatter.write("".join(f"{row}\n" for option in rows for row in option))
        rest = _more([option for option in options if option not in shown])
        more = _wrapped(f"More: {rest}", formatter.width) if rest else []
        formatter.write("\n" + "\n".join([*more, f"{ctx.command_path} {HELP_ALL} explains {'them' if rest else 'more'}."]))
        return formatter.getvalue().rstrip("\n")


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Return what ``click.command`` returns, with this help."""
    return click.command(name, cls=Command, **settings)


def _show_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        assert isinstance(ctx.command, Command)
        click.echo(ctx.command.whole_help(ctx))
        ctx.exit()


def blocks(epilog: str | None) -> list[str]:
    """Return the blocks of an epilog, each as its lines are to be shown.

    >>> blocks("\\b\\nExamples:\\n  a\\n\\n\\b\\nIt does b.")
    ['Examples:\\n  a', 'It does b.']
    """
    return [block.strip("\n") for block in re.split("^\b$", inspect.cleandoc(epilog or ""), flags=re.MULTILINE) if block.strip()]


def is_example(block: str) -> bool:
    return block.startswith("Example")


def write_blocks(ctx: click.Context, formatter: click.HelpFormatter, *, examples: bool) -> None:
    """Write the examples of the command's epilog, or its other blocks. Commands in them begin as the person began this one."""
    called = ctx.find_root().info_name or PROGRAM
    for block in blocks(ctx.command.epilog):
        if is_example(block) is examples:
            _verbatim(formatter, started_here(block, called))


def started_here(text: str, called: str) -> str:
    """Return commands as the person began this one; not those of another host, which a path, ``ssh HOST`` or ``--`` precedes.

    >>> started_here("ssh n7 torchtune-sys record | torchtune-sys check -; srun torchtune-sys fleet -- /opt/torchtune-sys snapshot", "./run")
    'ssh n7 torchtune-sys record | ./run check -; srun ./run fleet -- /opt/torchtune-sys snapshot'
    """
    return re.sub(rf"(?<!\S)(ssh \S+ |-- )?{PROGRAM}(?= )", lambda found: found[0] if found[1] else called, text)


def _verbatim(formatter: click.HelpFormatter, block: str) -> None:
    """Write a block: indented rows as they are, with long commands continued; all other rows as wrapped text."""
    rows: list[str] = []
    for kept, group in groupby(block.splitlines(), key=lambda row: not row or row.startswith(" ")):
        if kept:
            rows += [part for row in group for part in _continued(row, formatter.width - 2)]
        else:
            rows += _wrapped(" ".join(group), formatter.width - 2)
    formatter.write("\n" + "".join(f"  {row}".rstrip() + "\n" for row in rows))


def _continued(row: str, width: int) -> list[str]:
    """Return a command that is too long for a row, in several, as a shell takes it: each begins with an option, or with the next command of a pipe."""
    if len(row) <= width:
        return [row]
    rows = [""]
    for command in re.split(r" (?=(?:\||&&) )", row):
        for part in re.split(" (?=[->] ?)", command) if len(command) + 7 > width else [command]:
            if rows[-1] and len(rows[-1]) + len(part) + 3 > width:
                rows[-1] += " \\"
                rows.append("     ")
            rows[-1] += f" {part}" if rows[-1] else part
    return rows


def _more(options: Sequence[click.Option]) -> str:
    names = ("/".join((option.opts[-1], *option.secondary_opts)) for option in options)
    return ", ".join(name for name in names if name not in ("--help", HELP_ALL))


def _rows_of_more(options: Sequence[click.Option], formatter: click.HelpFormatter) -> int:
    return len(_wrapped(f"More: {_more(options)}", formatter.width))


def _wrapped(text: str, width: int, further: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent=further, break_on_hyphens=False)


def _rows(option: click.Option, ctx: click.Context, width: int) -> list[str]:
    """Return an option in as few rows as hold its names and the first sentence that says what it does, up to what may be left out."""
    names, text = option.get_help_record(ctx) or ("", "")
    if len(names) > _NAMES - 2 and option.metavar is None:
        names = ", ".join(option.opts) + " NAME"
    row = f"  {names:<{_NAMES - 2}}" if len(names) < _NAMES - 2 else f"  {names}  "
    sentence = re.split(r"(?<=[^.])\. |; | \[", text)[0].strip(" [].")
    sentence = sentence if sentence.count("(") == sentence.count(")") else sentence.rpartition(" (")[0]
    condition, colon, _ = sentence.partition(": ")
    row += condition + colon if condition.startswith("With --") and colon else ""
    sentence = sentence.removeprefix(condition + colon) if condition.startswith("With --") else sentence
    room = width - len(row)
    for end in (": ", ", "):
        sentence = sentence if len(sentence) <= room else sentence.partition(end)[0]
    return _wrapped(f"{row}{sentence}", width, " " * _NAMES)
