"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from torchtune_sys.cli.help import command as command

_F = TypeVar("_F", bound=Callable[..., Any])

INTENT = ("ranks", "nodes", "threads", "workers", "data", "checkpoints", "python", "live")
NO_INTENT: Mapping[str, Any] = {**dict.fromkeys(INTENT), "data": (), "checkpoints": (), "live": False}
"""The intent options when none is given."""
DESCRIPTION = ("system", "machine", "gpu", "gpus", "driver", "kernel")
"""Options that describe a host which does not exist yet (``cli/described.py``)."""
PROFILES = ("workstation", "single-node", "cluster", "container", "ci")
COUNT = click.IntRange(min=1)


class CountOrRange(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """``4``, or ``2:4`` as torchrun takes it: the least and the most."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the least and the most; both are the same where one number is given."""
        least, colon, most = str(value).partition(":")
        words = (least, most if colon else least)
        if not all(word.isascii() and word.isdecimal() and 0 < len(word) < 8 for word in words):
            self.fail(f"{value!r} is neither a number nor MIN:MAX.", param, ctx)
        found = int(words[0]), int(words[1])
        if not 1 <= found[0] <= found[1]:
            self.fail(f"{value!r} must be 1 at least, and MIN no more than MAX.", param, ctx)
        return found


def seconds(least: float = 0.0) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """Return a check of a number of seconds: a day at most, so that nobody waits for ever; ``nan`` is a float that click's own range lets through."""

    def checked(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
        if value is not None and not least <= value <= 86400:
            wanted = f"at least {least:g}" if least >= 1 or not least else "above 0"
            raise click.BadParameter(f"{value:g} is not a number of seconds {wanted} and at most 86400 (a day).")
        return value

    return checked


def was_given(name: str) -> bool:
    """Return whether the person gave the option of this parameter."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_without_effect(piece: str, used_by: Mapping[str, Sequence[str]], harmless: Sequence[str]) -> None:
    """Raise click.UsageError for an option that was given and has no effect on ``piece``; say so on stderr where that is ``harmless``.

    ``used_by``: parameter → the pieces that it is for, where that is not every piece."""
    from torchtune_sys.cli.terminal import tell

    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        pieces = used_by.get(name, (piece,))
        if piece in pieces or not was_given(name):
            continue
        words = f"{option.opts[-1]} has no effect on {piece}: it is for {', '.join(pieces)}"
        if name not in harmless:
            raise click.UsageError(f"{words}.")
        tell(words)


def together(options: Sequence[Callable[[Any], Any]]) -> Callable[[_F], _F]:
    def apply(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


def host_options(function: _F) -> _F:
    """Add the options that say which host is looked at, and for how long."""
    return together(
        (
            click.option(
                "--from",
                "from_",
                metavar="PATH",
                help="Read PATH instead of this host: a recording, a directory or tarball with a copy of /proc and "
                "/sys, a pasted report (collect_env, nvidia-smi); - is standard input.",
            ),
            click.option("--root", metavar="DIR", help="Read the system mounted at DIR instead of this host."),
            timeout_option,
        )
    )(function)


def wait_option(function: _F) -> _F:
    """Add ``--wait`` to a command that changes the host: one of them at a time."""
    return click.option(
        "--wait",
        type=float,
        callback=seconds(),
        default=0.0,
        metavar="S",
        help="Wait up to S seconds for another run to end. [0]",
    )(function)


def timeout_of(words: str) -> Callable[[_F], _F]:
    """Make ``--timeout``, whose help ``words`` say what ends, and after how long by default."""
    return click.option("--timeout", type=float, callback=seconds(1e-6), metavar="S", help=words)


timeout_option = timeout_of("Stop collecting facts after S seconds. [30; with --live 90]")


def given_again(context: click.Context, without: Container[str]) -> str:
    """Return the options that the command line gave, each after a blank, as a shell takes them; those named ``without`` are left out."""
    from shlex import join

    words: list[str] = []
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is not ParameterSource.COMMANDLINE or param.name in without or not isinstance(param, click.Option):
            continue
        value = context.params[param.name or ""]
        if param.is_flag:
            words.append(param.opts[-1] if value else param.secondary_opts[-1])
            continue
        for each in value if param.multiple else (value,):
            words += [param.opts[-1], f"{each:g}" if isinstance(each, float) else str(each)]
    return f" {join(words)}" if words else ""


def intent_options(function: _F) -> _F:
    """Add the options that say what the person means to run."""
    return together(
        (
            click.option(
                "--python", metavar="PATH", help="Python interpreter that you train with. [python3 of the active environment]"
            ),
            click.option("--live", is_flag=True, help="Also import torch, in a child process."),
            click.option(
                "--nproc-per-node", "ranks", type=COUNT, metavar="N", help="Training processes on this host. [from the job]"
            ),
            click.option("--nnodes", "nodes", type=COUNT, metavar="N", help="Hosts in the job. [from the job]"),
            click.option("--threads", type=COUNT, metavar="N", help="OpenMP threads per process. [OMP_NUM_THREADS]"),
            click.option("--workers", type=click.IntRange(min=0), metavar="N", help="DataLoader workers per process."),
            click.option(
                "--data", multiple=True, metavar="PATH", help="Path of the training data; may be repeated. [working directory]"
            ),
            click.option("--checkpoints", multiple=True, metavar="PATH", help="Where checkpoints go; may be repeated."),
        )
    )(function)


def selection_options(function: _F) -> _F:
    """Add the options that select rules."""
    return together(
        (
            click.option(
                "--select",
                multiple=True,
                metavar="NAMES",
                shell_complete=_complete_selectors,
                help="Run only these rules: ids, families, severities or globs, separated by commas.",
            ),
            click.option(
                "--ignore",
                multiple=True,
                metavar="NAMES",
                shell_complete=_complete_selectors,
                help="Skip these rules; named as in --select.",
            ),
        )
    )(function)


def profile_options(function: _F) -> _F:
    """Add the options that change the rules' parameters."""
    return together(
        (
            click.option("--profile", type=click.Choice(PROFILES), help="Kind of host: sets parameters and skips rules."),
            click.option("--config", metavar="FILE", help="Configuration file (TOML). [$TORCHTUNE_SYS_CONFIG]"),
        )
    )(function)


def output_option(function: _F) -> _F:
    return click.option("-o", "--output", metavar="FILE", help="Write to FILE, atomically; - is standard output.")(function)


def max_tainted_option(function: _F) -> _F:
    return click.option(
        "--max-tainted",
        default=_tainted_at_most,
        callback=_taint_limit,
        metavar="N|P%",
        help="With --act: taint no further node while this many have the taint. [10%, at least 1]",
    )(function)


def _tainted_at_most() -> str:
    from torchtune_sys.preflight.drain_limit import TAINTED_AT_MOST

    return TAINTED_AT_MOST


def _taint_limit(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """``4`` or ``10%``."""
    from torchtune_sys.preflight.drain_limit import parse_taint_limit

    try:
        return str(parse_taint_limit(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def color_option(function: _F) -> _F:
    return click.option(
        "--color",
        type=click.Choice(("auto", "always", "never")),
        default="auto",
        metavar="WHEN",
        help="auto, always or never; auto depends on the terminal, NO_COLOR and FORCE_COLOR. [auto]",
    )(function)


def format_option(*formats: str) -> Callable[[_F], _F]:
    return click.option(
        "--format", "format_", type=click.Choice(formats), default=formats[0], help=f"Output format. [{formats[0]}]"
    )


def _complete_selectors(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from torchtune_sys.rules import CATALOGUE

    before, comma, last = incomplete.rpartition(",")
    names = [*dict.fromkeys(rule.family for rule in CATALOGUE), "error", "warning", "advice", *(rule.id for rule in CATALOGUE)]
    return [before + comma + name for name in names if name.startswith(last)]


def complete_rule_lists(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last of ids that are separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in complete_rules(ctx, param, last)]


def complete_rules(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from torchtune_sys.rules import CATALOGUE

    return [rule.id for rule in CATALOGUE if rule.id.startswith(incomplete)]


def complete_rules_and_causes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from torchtune_sys.knowledge.causes import cause_rows

    names = (*complete_rules(ctx, param, incomplete), *(name for name in cause_rows() if name.startswith(incomplete)))
    return list(dict.fromkeys(names))
