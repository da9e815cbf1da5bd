"""``torchtune-sys fleet``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.compare import FORMATS, WEIGHTS
from torchtune_sys.cli.main import FINDINGS, UNJUDGED
from torchtune_sys.errors import UnreadableInput

if TYPE_CHECKING:
    from torchtune_sys.fleet.collecting import Transport
    from torchtune_sys.model.comparison import Comparison

_COMMAND = ("torchtune-sys", "snapshot", "--compact")


@shared.command(
    "fleet",
    common=("--nodes", "--slurm", "--inventory", "--save", "--golden"),
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  torchtune-sys fleet                                   in a Slurm job
  torchtune-sys fleet --slurm --nodes 'node[1-64]' --save today.jsonl
  torchtune-sys fleet --nodes '@gpu' -- /opt/tt/bin/torchtune-sys snapshot --compact
  torchtune-sys fleet --nodes 'node[1-8]' -- torchtune-sys check --format json
  torchtune-sys fleet --inventory inventory.yml --nodes 'gpu:!login'
  torchtune-sys fleet --dir /shared/facts

\b
How it gets there: in a Slurm job, or with --slurm, by srun, a step for each
node; with --nodes by ClusterShell (clush, with your ssh settings); with
--inventory by Ansible, where the collection's module torchtune_facts is asked
unless COMMAND is given; with --dir it reads what is already there. It brings
no transport of its own. COMMAND must print what compare reads; [torchtune-sys
snapshot --compact].

\b
A host that does not answer within --timeout, that Slurm calls down, or that
answers something else is named with the reason, and holds up no other.

\b
Exit status: 0 alike and no error found; 1 a host is odd, there are groups, or
check found an error on one; 2 usage; 3 a host did not answer, or nothing to
compare; 4 internal error.
""",
)
@click.argument("words", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--slurm", is_flag=True, help="By srun, also outside of a job. [in a job]")
@click.option(
    "--nodes",
    metavar="SET",
    help="The hosts: a node set of ClusterShell's, with --slurm a list of Slurm's, with --inventory a pattern.",
)
@click.option("--inventory", metavar="FILE", help="By Ansible, the hosts of its inventory. [all of them]")
@click.option("--dir", "folder", metavar="DIR", help="Collect nothing: judge the files in DIR.")
@click.option(
    "--timeout", type=float, callback=shared.seconds(1), default=60.0, metavar="S", help="Wait S seconds for each host. [60]"
)
@click.option("--at-once", type=shared.COUNT, default=64, metavar="N", help="Ask N hosts at a time. [64]")
@click.option("--save", metavar="FILE", help="Keep what the hosts answered: a line of JSON each.")
@click.option("--golden", metavar="FILE", help="Compare all with the one host in FILE.")
@click.option("--before", metavar="FILE", help="Compare each with itself in FILE (or DIR), saved before.")
@click.option("--weight", type=click.Choice(WEIGHTS), default="noise", help="Leave out what is lighter. [noise]")
@click.option("--all", "whole", is_flag=True, help="Text: all differences, however many.")
@shared.format_option(*FORMATS)
@shared.output_option
@shared.color_option
def command(**options: Any) -> int:
    """Run COMMAND on many hosts, and say what differs between them and what check finds there."""
    if options["golden"] is not None and options["before"] is not None:
        raise UnreadableInput("--golden and --before exclude each other", "give one of them")
    if options["folder"] is not None:
        if options["words"] or options["slurm"] or options["nodes"] or options["inventory"] or options["save"]:
            raise UnreadableInput("--dir collects nothing", "leave out --slurm, --nodes, --inventory, --save and the command")
        return _judged(options, options["folder"])
    from torchtune_sys.cli.terminal import tell
    from torchtune_sys.cli.watch import LOGS_PATIENCE_S, confined

    def late() -> int:
        tell(
            f"torchtune-sys: the answers could not be compared within {LOGS_PATIENCE_S:g} s",
            "  keep them with --save, and compare parts",
        )
        return UNJUDGED

    with _collected(options) as path:
        return confined(lambda: _judged(options, path), LOGS_PATIENCE_S, late)


def _judged(options: dict[str, Any], path: str) -> int:
    from torchtune_sys.cli.commands.compare import compared, give_comparison

    found = compared({**options, "paths": [path]})
    give_comparison(found, options)
    return _status(found)


@contextmanager
def _collected(options: dict[str, Any]) -> Iterator[str]:
    """Provide the file with all answers; it stays only where --save names it. Raises UnreadableInput."""
    from torchtune_sys.cli.terminal import counting
    from torchtune_sys.fleet.collecting import collect
    from torchtune_sys.host.files import growing_file

    transport = _transport(options)
    show, clear = counting("hosts answered")
    with growing_file(options["save"]) as (path, put):
        try:
            collect(transport, options["words"] or _COMMAND, options["timeout"], options["at_once"], put, show)
        finally:
            clear()
        yield path


def _transport(options: dict[str, Any]) -> Transport:
    from torchtune_sys.host.isolation import session

    environment = session()
    if options["inventory"]:
        if options["slurm"]:
            raise UnreadableInput("--slurm and --inventory exclude each other", "give one of them")
        from torchtune_sys.fleet.over_ansible import Ansible

        own_command = bool(options["words"])
        return Ansible(options["inventory"], options["nodes"] or "", environment, options["at_once"], own_command)
    if options["slurm"] or (options["nodes"] is None and environment.get("SLURM_JOB_ID")):
        from torchtune_sys.fleet.over_slurm import Slurm

        return Slurm(options["nodes"] or "", environment)
    if options["nodes"]:
        from torchtune_sys.fleet.over_clustershell import ClusterShell

        return ClusterShell(options["nodes"], environment, options["at_once"])
    raise UnreadableInput(
        "nothing says which hosts",
        "give --nodes (ClusterShell), --inventory (Ansible), --slurm or --dir, or run it in a job of Slurm's",
    )


def _status(found: Comparison) -> int:
    from torchtune_sys.cli.commands.compare import status
    from torchtune_sys.model.comparison import DifferenceWeight

    alike = status(found)
    if alike == FINDINGS or any(item.weight is DifferenceWeight.ERROR for item in found.findings):
        return FINDINGS
    return alike or (UNJUDGED if found.unread else 0)
