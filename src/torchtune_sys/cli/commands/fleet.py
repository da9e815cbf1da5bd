"""``torchtune-sys fleet``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.compare import FORMATS, WEIGHTS
from torchtune_sys.cli.main import FINDINGS, UNJUDGED
from torchtune_sys.cli.terminal import growing_number, require_apart, require_output, tell
from torchtune_sys.cli.watch import LOGS_TIMEOUT_S, run_limited
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.children.child_environment import for_transports

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
Transport: srun in a Slurm job or with --slurm (one step per node);
ClusterShell (clush, with your ssh settings) with --nodes; Ansible with
--inventory (the module torchtune_facts unless COMMAND is given); none with
--dir, which reads existing files. COMMAND must print what compare reads.
[torchtune-sys snapshot --compact]

\b
A host that does not answer within --timeout, is down in Slurm, or answers
something else is listed with the reason. The others are compared all the same.

\b
Exit status: 0 no difference and no error; 1 outliers or groups, or check
found an error on a host; 2 usage error; 3 a host did not answer, or nothing
to compare; 4 internal error.
""",
)
@click.argument("words", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--slurm", is_flag=True, help="Use srun, also outside of a job. [in a job]")
@click.option(
    "--nodes",
    metavar="SET",
    help="Hosts: a ClusterShell node set; with --slurm a Slurm host list; with --inventory an Ansible pattern.",
)
@click.option("--inventory", metavar="FILE", help="Use Ansible with this inventory. [all of its hosts]")
@click.option("--dir", "folder", metavar="DIR", help="Collect nothing; read the files in DIR.")
@click.option(
    "--timeout",
    type=float,
    callback=shared.seconds(1),
    default=60.0,
    metavar="S",
    help="Wait up to S seconds for each host. [60]",
)
@click.option("--at-once", type=shared.COUNT, default=64, metavar="N", help="Contact N hosts at a time. [64]")
@click.option("--save", metavar="FILE", help="Save the hosts' answers to FILE, one line of JSON each.")
@click.option("--golden", metavar="FILE", help="Compare every host with the one in FILE.")
@click.option("--before", metavar="FILE", help="Show what changed since FILE (or DIR) was saved.")
@click.option("--weight", type=click.Choice(WEIGHTS), default="noise", help="Lowest weight to show. [noise]")
@click.option("--all", "whole", is_flag=True, help="Text: show all differences, however many.")
@shared.format_option(*FORMATS)
@shared.output_option
@shared.color_option
def command(**options: Any) -> int:
    """Run COMMAND on many hosts, and show what differs and what check finds there."""
    if options["golden"] is not None and options["before"] is not None:
        raise UnreadableInput("--golden and --before exclude each other", "give one of them")
    require_apart((options["output"], options["save"]), (options["golden"], options["before"]))
    require_output(options["output"])
    if options["folder"] is not None:
        if options["words"] or options["slurm"] or options["nodes"] or options["inventory"] or options["save"]:
            raise UnreadableInput("--dir collects nothing", "leave out --slurm, --nodes, --inventory, --save and the command")
        return _judged(options, options["folder"])

    def late() -> int:
        tell(
            f"torchtune-sys: the answers could not be compared within {LOGS_TIMEOUT_S:g} s",
            "  keep them with --save, and compare parts",
        )
        return UNJUDGED

    with _collected(options) as path:
        return run_limited(lambda: _judged(options, path), LOGS_TIMEOUT_S, late)


def _judged(options: dict[str, Any], path: str) -> int:
    from torchtune_sys.cli.commands.compare import compared, give_comparison

    found = compared({**options, "paths": [path]})
    give_comparison(found, options)
    return _status(found)


@contextmanager
def _collected(options: dict[str, Any]) -> Iterator[str]:
    """Provide the file with all answers; it stays only where --save names it. Raises UnreadableInput."""
    from torchtune_sys.fleet.collecting import collect
    from torchtune_sys.host.files import growing_file

    transport = _transport(options)
    show, clear = growing_number("hosts answered")
    with growing_file(options["save"]) as (path, put):
        try:
            collect(transport, options["words"] or _COMMAND, options["timeout"], options["at_once"], put, show)
        finally:
            clear()
        yield path


def _transport(options: dict[str, Any]) -> Transport:
    environment = for_transports()
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
        "no hosts were named",
        "give --nodes (ClusterShell), --inventory (Ansible), --slurm or --dir, or run it in a Slurm job",
    )


def _status(found: Comparison) -> int:
    from torchtune_sys.cli.commands.compare import status
    from torchtune_sys.model.comparison import DifferenceWeight

    return FINDINGS if any(item.weight is DifferenceWeight.ERROR for item in found.findings) else status(found)
