"""``torchtune-sys preflight``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.main import UNJUDGED
from torchtune_sys.cli.terminal import environment, give, require_output, style, tell
from torchtune_sys.cli.watch import PREFLIGHT_BUDGETS_S
from torchtune_sys.errors import CannotWrite, UserError
from torchtune_sys.preflight.hooks import HOOKS

if TYPE_CHECKING:
    from torchtune_sys.model.preflight import Preflight

FORMATS = ("text", "json", "prometheus", "reason", "node-patch")
DRAIN_LIMIT, DRAIN_WINDOW_S = 4, 3600.0
_TOLD_AT_MOST = 5
_LISTS_GRACE_S = 60.0
"""Between the clocks of hosts and of a file server, and for ranks that start late."""
_PARTNERS = {
    **dict.fromkeys(("drain_limit", "drain_window", "domain"), "drain_state"),
    **dict.fromkeys(("rdzv_id", "rdzv_is_host", "last_call"), "rdzv_endpoint"),
    "log_after": "hook",
    "max_tainted": "act",
}
"""Options that say how another one works; a hook is also known by SLURM_SCRIPT_CONTEXT."""


@shared.command(
    "preflight",
    common=("--level", "--python", "--policy", "--site-checks", "--budget"),
    epilog="""\b
Examples:
  torchtune-sys preflight
  torchtune-sys preflight --level standard --python ~/train/.venv/bin/python3
  torchtune-sys preflight --policy /etc/torchtune-sys/policy.toml --site-checks /etc/torchtune-sys/checks.d
  srun --ntasks-per-node 1 torchtune-sys preflight --format json
  srun --ntasks-per-node 1 torchtune-sys preflight --isolate --lists .
  torchtune-sys generate slurm prolog --tool /usr/local/bin/torchtune-sys -o /etc/slurm/prolog.d/50-torchtune-sys.sh

\b
Levels:
  fast       judge the host's facts in about a second; do not import torch
  standard   also run a short training with your Python (smoke --quick)

\b
A policy file (TOML) makes findings fatal, warnings or ignored, by rule, cause,
family or severity, and by partition. Without a policy, errors are fatal.
docs/preflight.md describes it.

\b
Exit status: 0 go; 1 no-go; 2 usage error; 3 could not judge; 4 internal
error. In a Slurm hook (--hook, or SLURM_SCRIPT_CONTEXT) 2, 3 and 4 become 0
with a message on stderr, so that a failing checker does not drain a cluster
(--fail-closed keeps them).
""",
)
@click.option(
    "--level",
    type=click.Choice(tuple(PREFLIGHT_BUDGETS_S)),
    default="fast",
    help="Judge the host's facts (fast), or also train (standard). [fast]",
)
@click.option("--python", metavar="PATH", help="Python interpreter that you train with. [python3 of the active environment]")
@click.option("--policy", metavar="FILE", help="Policy file: what is fatal, a warning or ignored (TOML).")
@click.option(
    "--site-checks", metavar="DIR", help="Also run the executables in DIR: monitoring plug-ins, or programs that print JSON."
)
@click.option(
    "--budget", type=float, callback=shared.seconds(0.1), metavar="S", help="Time limit in seconds. [15; at level standard 60]"
)
@click.option(
    "--nnodes",
    type=shared.CountOrRange(),
    metavar="N",
    help="Hosts in the job, or MIN:MAX. [from the job; in a health check 2]",
)
@click.option("--hook", type=click.Choice(HOOKS), help="Slurm hook that this runs in. [from SLURM_SCRIPT_CONTEXT]")
@click.option("--fail-closed", is_flag=True, help="In a hook, keep the exit statuses 2, 3 and 4.")
@click.option(
    "--log-after",
    type=click.IntRange(min=0),
    default=0,
    metavar="S",
    help="In a hook, kernel log messages up to S seconds after boot are only warnings. [0]",
)
@click.option("--drain-state", metavar="DIR", help="Directory shared by all nodes, where the number of nodes judged bad is kept.")
@click.option(
    "--drain-limit",
    type=shared.COUNT,
    default=DRAIN_LIMIT,
    metavar="N",
    help="With --drain-state: at most N nodes become no-go within the window. [4]",
)
@click.option(
    "--drain-window",
    type=float,
    callback=shared.seconds(1),
    default=DRAIN_WINDOW_S,
    metavar="S",
    help="With --drain-state: length of the window in seconds. [3600]",
)
@click.option("--domain", default="", metavar="NAME", help="Failure domain to which the limit applies. [the job's partition]")
@click.option("--alone", is_flag=True, help="At level standard: test this node only, without the job's other nodes.")
@click.option(
    "--rdzv-endpoint",
    metavar="HOST:PORT",
    help="Before torchrun starts, meet the job's other nodes at torchrun's endpoint and compare the facts of all nodes.",
)
@click.option("--rdzv-id", default="none", metavar="ID", help="With --rdzv-endpoint: the job id, as passed to torchrun. [none]")
@click.option("--rdzv-is-host", type=bool, metavar="BOOL", help="Whether this host is the endpoint. [by its addresses]")
@click.option(
    "--meet-within",
    type=float,
    callback=shared.seconds(1),
    metavar="S",
    help="Wait up to S seconds for the job's other nodes. [20; with --rdzv-endpoint 600]",
)
@click.option(
    "--last-call",
    type=float,
    callback=shared.seconds(),
    default=30.0,
    metavar="S",
    help="With --nnodes MIN:MAX: once MIN nodes are there, wait up to S seconds for more. [30]",
)
@click.option(
    "--hostfile",
    metavar="FILE",
    help="Names of the job's nodes, one per line, for launchers that do not tell them (mpirun, torchrun). [Slurm's list]",
)
@click.option("--secret-file", metavar="FILE", help="File with the job's shared secret, the same on all nodes; mode 0600.")
@click.option(
    "--isolate", is_flag=True, help="Test groups of nodes until the bad node or link is found. Implies --level standard."
)
@click.option("--topology", metavar="FILE", help="With --isolate: leaf switches, in the format of Slurm's topology.conf.")
@click.option("--lists", metavar="DIR", help="Write good_nodes.txt, bad_nodes.txt, exclude.txt and more to DIR, which is made.")
@click.option("--act", is_flag=True, help="With --format node-patch, in a pod: also apply the patches to this node.")
@shared.max_tainted_option
@click.option("--facts", metavar="FILE", help="Also write the facts to FILE, in compact form for torchtune-sys compare.")
@click.option("--from", "from_", metavar="PATH", help="Judge a recording instead of this host, as check does.")
@shared.format_option(*FORMATS)
@shared.output_option
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict and the fatal findings.")
@shared.color_option
def command(**options: Any) -> int:
    """Decide go or no-go for a job on this node, with causes and who must act."""
    from torchtune_sys.cli.preflight_run import judged
    from torchtune_sys.preflight.context import where
    from torchtune_sys.preflight.verdict import without_secrets

    if options["isolate"]:
        options["level"] = "standard"
    place = options["hook"] or ("torchrun" if options["rdzv_endpoint"] is not None else where(environment()))
    _refuse_contradictions(options, place)
    if options["lists"]:
        from torchtune_sys.host.files import require_folder

        require_folder(options["lists"])
    require_output(options["output"], options["lists"] and os.path.join(options["lists"], "good_nodes.txt"))
    if options["lists"]:
        _forget_lists(options)
    found = without_secrets(judged(options, place))
    give(_rendered(found, options), options["output"], machine=options["format_"] != "text")
    unwritten = _write_lists(options, found) if options["lists"] else 0
    if place in HOOKS:
        _tell_unknown(found)
    if place == "epilog":
        _tell_leftovers(found)
    status = _status(found)
    if status == UNJUDGED and place in HOOKS and not options["fail_closed"]:
        tell("torchtune-sys: pre-flight could not judge this node, and keeps it in service")
        return 0
    return status if place in HOOKS else status or unwritten


def _forget_lists(options: Mapping[str, Any]) -> None:
    """Remove lists that no rank of this run can have written: were it to end without a verdict, they would be taken for its own. Raises CannotWrite."""
    from torchtune_sys.cli.joint_run import LISTS
    from torchtune_sys.cli.preflight_run import budget_s_of
    from torchtune_sys.host.files import remove_older

    remove_older(options["lists"], LISTS, budget_s_of(options) + (options["meet_within"] or 0.0) + _LISTS_GRACE_S)


def _write_lists(options: Mapping[str, Any], found: Preflight) -> int:
    """Write the lists where the verdict is that of all nodes. Returns the exit status for lists that could not be written, else 0: the verdict was given."""
    from torchtune_sys.cli.joint_run import tells_of_all, write_lists

    if not tells_of_all(found):
        tell(
            f"torchtune-sys: {options['lists']}: no lists are written, because this node knows no verdict on at least half of the job's nodes"
        )
        return 0
    try:
        write_lists(options["lists"], found, isolates=options["isolate"])
    except CannotWrite as error:
        tell(f"torchtune-sys: the lists could not be written: {error.seen}", f"  {error.todo}")
        return error.exit_code
    return 0


def _refuse_contradictions(options: Mapping[str, Any], place: str) -> None:
    """Raise UserError for options that contradict each other."""
    if options["isolate"] and (options["alone"] or options["from_"] or place in HOOKS):
        other = "--alone" if options["alone"] else "--from" if options["from_"] else f"a {place}"
        raise UserError(f"--isolate tests nodes together, and {other} looks at one", "leave out one of them")
    if options["topology"] and not options["isolate"]:
        raise UserError("--topology tells --isolate which nodes are behind which switch", "give --isolate, too")
    for name, partner in _PARTNERS.items():
        if shared.was_given(name) and not (place in HOOKS if partner == "hook" else options[partner]):
            raise UserError(
                f"--{name.replace('_', '-')} has no effect without --{partner.replace('_', '-')}", "give both, or neither"
            )
    if options["act"] and options["format_"] != "node-patch":
        raise UserError("--act applies the patches that --format node-patch prints", "--format node-patch --act")


def _tell_unknown(found: Preflight) -> None:
    """Log why a node was not judged."""
    from torchtune_sys.model.preflight import Go, Weight

    node = found.nodes[0]
    unknown = [cause for cause in node.causes if cause.weight is Weight.UNKNOWN] if node.verdict is Go.UNKNOWN else []
    for cause in unknown[:_TOLD_AT_MOST]:
        tell(f"torchtune-sys: could not be checked: {cause.rule}: {cause.seen}")
    if len(unknown) > _TOLD_AT_MOST:
        tell(f"torchtune-sys: {len(unknown) - _TOLD_AT_MOST} more could not be checked")


def _tell_leftovers(found: Preflight) -> None:
    """Log what a job left behind; that drains the node only if the policy says so."""
    from torchtune_sys.model.preflight import Weight
    from torchtune_sys.preflight.policy import LEFT_BEHIND

    job = environment().get("SLURM_JOB_ID", "")
    for cause in found.nodes[0].causes:
        if cause.weight is Weight.WARNING and LEFT_BEHIND & {cause.cause, cause.rule}:
            tell(f"torchtune-sys: after job {job}: [{cause.blame.value}] {cause.cause}: {cause.seen}")


def _rendered(found: Preflight, options: Mapping[str, Any]) -> str:
    from torchtune_sys.render import preflight as render

    if options["format_"] == "json":
        from torchtune_sys.render import as_json

        return as_json.preflight(found)
    if options["format_"] == "prometheus":
        return render.prometheus(found)
    if options["format_"] == "node-patch":
        from torchtune_sys.cli.node_patch import patched

        return patched(found, act=options["act"], at_most=options["max_tainted"])
    if options["format_"] == "reason":
        said = render.reason_of_all(found)
        return f"{said}\n" if said else ""

    return render.text(found, style(options["color"], options["output"], is_here=not options["from_"]), quiet=options["quiet"])


def _status(found: Preflight) -> int:
    from torchtune_sys.model.preflight import Go

    return {Go.GO: 0, Go.NO_GO: 1, Go.UNKNOWN: UNJUDGED}[found.verdict]
