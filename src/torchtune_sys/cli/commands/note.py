"""``torchtune-sys note``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys import __version__
from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import require_output, say
from torchtune_sys.errors import AGAIN_AS_ROOT, UserError


@shared.command(
    "note",
    epilog="""\b
Examples:
  sudo torchtune-sys note "package numactl installed"
  sudo torchtune-sys note --run 3 "slurmd restarted" "host rebooted"

\b
For playbooks and scripts that make changes outside this tool: packages,
restarts, a reboot. history lists the note; undo reports it as not undone.
""",
)
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option(
    "--run", type=click.IntRange(min=1), metavar="N", help="Run to which the change belongs. [the last; else a new one]"
)
@shared.wait_option
def command(**options: Any) -> int:
    """Record in a run's journal a change that was made outside this tool."""
    from torchtune_sys.cli import confirm as changing
    from torchtune_sys.cli.privilege import boot_id, is_root
    from torchtune_sys.cli.take_snapshot import now
    from torchtune_sys.remediation.apply import journal, session

    if not all(text.strip() for text in options["texts"]):
        raise UserError("a note is empty", 'say what was changed: torchtune-sys note "package numactl installed"')
    if not is_root():
        raise UserError("the journal is root's", AGAIN_AS_ROOT)
    require_output(None)
    try:
        with changing.progress_lines() as tell, changing.alone(options["wait"], tell):
            if options["run"] and options["run"] not in journal.numbers(journal.STATE):
                raise UserError(f"there is no run {options['run']}", "torchtune-sys history lists them")
            moment = session.Moment(version=__version__, time=now()[0], boot_id=boot_id())
            found = session.enter(options["texts"], options["run"], moment)
    except OSError as error:
        raise changing.NotMade(f"{error.filename or journal.STATE}: {error.strerror}", "nothing was entered") from None
    say(f"Entered in run {found.number}.\n")
    return 0
