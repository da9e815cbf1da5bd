"""Entry point of ``torchtune-sys``: dispatch to the command, and exit with its status.

Every command lives in its own module, imported only when it is called: ``--help`` costs click and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from torchtune_sys import PROGRAM, __version__
from torchtune_sys.cli.lazy import LazyGroup
from torchtune_sys.cli.terminal import Closed, asked_columns, clear_status, environment, leave, say, tell
from torchtune_sys.cli.watch import SIGNALLED, heeded_signals, run_within_timeout
from torchtune_sys.errors import CannotWrite, Terminated, UserError
from torchtune_sys.host.isolation import session

if TYPE_CHECKING:
    from typing import NoReturn

COMMANDS = {
    "check": ("torchtune_sys.cli.commands.check", "Find what is wrong with this host for PyTorch training."),
    "diagnose": ("torchtune_sys.cli.commands.diagnose", "Find the cause of a failed run in its logs, reports and dumps."),
    "plan": ("torchtune_sys.cli.commands.plan", "Show the changes that would fix the findings; change nothing."),
    "apply": ("torchtune_sys.cli.commands.apply", "Make the planned changes and check that they worked."),
    "undo": ("torchtune_sys.cli.commands.undo", "Restore what apply changed."),
    "history": ("torchtune_sys.cli.commands.history", "List the runs of apply and undo on this host."),
    "note": ("torchtune_sys.cli.commands.note", "Record a manual change in the journal."),
    "launch": ("torchtune_sys.cli.commands.launch", "Start one rank, bound to the CPUs and memory near its GPU."),
    "smoke": ("torchtune_sys.cli.commands.smoke", "Run a short training to prove that this host can train."),
    "preflight": (
        "torchtune_sys.cli.commands.preflight",
        "Decide go or no-go for a job on this node, with the cause.",
    ),
    "generate": ("torchtune_sys.cli.commands.generate", "Print scripts and configuration files that make the changes."),
    "explain": ("torchtune_sys.cli.commands.explain", "Explain why a rule matters and how to fix it."),
    "rules": ("torchtune_sys.cli.commands.rules", "List the rules."),
    "snapshot": ("torchtune_sys.cli.commands.snapshot", "Print the facts that the rules judge."),
    "compare": ("torchtune_sys.cli.commands.compare", "Show what differs between hosts, or on one host over time."),
    "fleet": ("torchtune_sys.cli.commands.fleet", "Collect facts from many hosts and show what differs."),
    "record": ("torchtune_sys.cli.commands.record", "Write an anonymised recording of this host, to judge elsewhere."),
    "completion": ("torchtune_sys.cli.commands.completion", "Print the completion script for a shell."),
    "help": ("torchtune_sys.cli.commands.help", "Show the full help of a command."),
}
COMPLETE = f"_{PROGRAM.replace('-', '_').upper()}_COMPLETE"
"""The environment variable through which a shell's completion script asks for candidates."""
FINDINGS, USAGE, UNJUDGED, INTERNAL = 1, 2, 3, 4
_NAGIOS_UNKNOWN = 3
_TIMEOUT_S = 3
"""How long shutting down may take after a signal."""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    name=PROGRAM,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 well, 1 findings (check: an error, or what --fail-on names), 2 usage, 3 could not judge, 4 internal error.",
)
@click.version_option(__version__, "-V", "--version", prog_name=PROGRAM)
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Check, fix and prove a Linux host for PyTorch training.

    \b
      torchtune-sys check                 find problems; changes nothing
      torchtune-sys explain RULE          why a finding matters, how to fix it
      torchtune-sys plan                  show the fixes; then apply, undo
      torchtune-sys smoke                 prove it with a short training run
      torchtune-sys diagnose train.log    find the cause of a failed run
      torchtune-sys check --from FILE     judge a recording or pasted report
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command line."""
    args = sys.argv[1:]
    try:
        if sys.stdout is None:
            sys.stdout = Closed()  # click would leave out what it prints itself, and end with status 0
        _heed_termination()
        code = run_within_timeout(args, run, lambda limit_s: _late(args, limit_s))
    except (KeyboardInterrupt, Terminated) as signal:
        code = _ended(args, signal)
    except OSError as error:  # no child could be started to read what was named
        code = _refused(args, error)
    leave(code)


def _late(args: Sequence[str], limit_s: float) -> int:
    seen = f"the input could not be read and judged within {limit_s:g} s"
    return _failed(args, UNJUDGED, seen, "a longer --timeout, or less input")


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit status; every error has been told on stderr."""
    # A script for a shell in the place of a verdict, with status 0, is what whoever can set a variable must not get; shells ask without arguments.
    ask = "" if args else COMPLETE
    try:
        found = cli.main(
            list(args), prog_name=_called_as(), standalone_mode=False, max_content_width=_columns(), complete_var=ask
        )
    except UserError as error:
        return _failed(args, error.exit_code, error.seen, error.todo)
    except click.ClickException as error:
        return _misused(args, error)
    except (click.Abort, KeyboardInterrupt, Terminated) as signal:
        return _ended(args, signal)
    except SystemExit:  # click's, and with status 1: the reader of --help or --version went away
        return 0
    except Exception as error:
        return _refused(args, error)
    return found if isinstance(found, int) else 0


def _heed_termination() -> None:
    import signal

    def stop(number: int, _frame: object) -> None:
        # Ctrl-C reaches each process of the terminal, and a parent passes it on: the second one must not cut the end short.
        for other in heeded:
            signal.signal(other, lambda _number, _frame: None)
        # An exception that comes while a lock of the import system is taken can leave it taken for ever.
        signal.signal(signal.SIGALRM, lambda _number, _frame: leave(SIGNALLED + number))
        signal.alarm(_TIMEOUT_S)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    def again(lost: sys.UnraisableHookArgs) -> None:
        # Python drops an exception in a destructor or the callback of a weak reference, such as the import system's: come a moment later.
        if not isinstance(lost.exc_value, (KeyboardInterrupt, Terminated)):
            sys.__unraisablehook__(lost)
            return
        number = lost.exc_value.number if isinstance(lost.exc_value, Terminated) else signal.SIGINT
        signal.signal(signal.SIGALRM, lambda _number, frame: stop(number, frame))
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    heeded = heeded_signals()
    sys.unraisablehook = again
    for number in heeded:
        signal.signal(number, stop)


def _ended(args: Sequence[str], ended: BaseException) -> int:
    from signal import SIGINT

    if isinstance(ended, Terminated):
        clear_status()
        return _failed(args, SIGNALLED + ended.number, "terminated")
    return _failed(args, SIGNALLED + SIGINT, "interrupted")


def _called_as() -> str:
    if "TORCHTUNE_SYS_CALLED_AS" not in session():
        return PROGRAM
    from torchtune_sys.cli.invocation import program

    return program(session())


def _columns() -> int | None:
    """Return the width that COLUMNS asks for; by default click limits help to 80."""
    if "COLUMNS" not in session():
        return None
    return asked_columns() or None


def _misused(args: Sequence[str], error: click.ClickException) -> int:
    from torchtune_sys.cli.usage import worded

    seen, todo = worded(error)
    return _failed(args, USAGE, seen, todo)


def _refused(args: Sequence[str], error: Exception) -> int:
    """Tell what the host lacks, and no command foresaw: memory, room for a help text, a process or thread, numbers for files. All else is a bug."""
    number = error.errno if isinstance(error, OSError) else 0
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return _failed(
            args, UNJUDGED, "there is not enough memory for this", "raise the limit on memory (ulimit -v), or give less input"
        )
    if isinstance(error, BlockingIOError) or str(error) == "can't start new thread":  # fork(2), pthread_create(3)
        return _failed(args, UNJUDGED, "no process could be started", "raise the limit on processes (ulimit -u, pids.max)")
    if number in (errno.EMFILE, errno.ENFILE):
        return _failed(args, UNJUDGED, "too many files are open", "raise the limit on open files (ulimit -n)")
    if number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT) and isinstance(error, OSError) and not error.filename:
        return _failed(args, INTERNAL, f"standard output: {error.strerror}", "make room, or write somewhere else")
    return _crashed(args, error)


def _crashed(args: Sequence[str], error: Exception) -> int:
    if "--debug" in args or environment().get("TORCHTUNE_SYS_DEBUG"):
        import traceback

        tell(*"".join(traceback.format_exception(error)).rstrip().split("\n"))
    words = f"internal error: {type(error).__name__}: {error} (a bug)"
    return _failed(args, INTERNAL, " ".join(words.split()), "torchtune-sys --debug … shows where it happened")


def _failed(args: Sequence[str], code: int, seen: str, todo: str = "") -> int:
    if _for_nagios(args):
        # Monitoring reads standard output, and would take our 2 for CRITICAL.
        from torchtune_sys.host.secrets.filter import scrubbed
        from torchtune_sys.render.nagios import line

        with contextlib.suppress(CannotWrite):
            say(line(_NAGIOS_UNKNOWN, scrubbed(seen)) + "\n")
        if code == INTERNAL:  # standard output may be what failed
            tell(f"{PROGRAM}: {seen}")
        return _NAGIOS_UNKNOWN
    from torchtune_sys.preflight.hooks import keeps_in_service

    in_service = code in (USAGE, UNJUDGED, INTERNAL) and keeps_in_service(args, session())
    tell(f"{PROGRAM}: " + ("pre-flight could not judge this node, and keeps it in service: " if in_service else "") + seen)
    if todo:
        from torchtune_sys.cli.invocation import again_as_root

        tell(f"  {again_as_root(todo, list(args), session())}")
    return 0 if in_service else code


def _for_nagios(args: Sequence[str]) -> bool:
    pairs = zip(args, [*args[1:], ""], strict=False)  # no arguments: no pair
    return any(one == "--format=nagios" or (one == "--format" and other == "nagios") for one, other in pairs)
