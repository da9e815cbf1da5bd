"""``torchtune-sys preflight``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys import __version__
from torchtune_sys.cli import options as shared
from torchtune_sys.cli.main import INTERNAL, UNJUDGED, USAGE
from torchtune_sys.errors import UserError
from torchtune_sys.preflight.context import HOOKS

if TYPE_CHECKING:
    from torchtune_sys.model.preflight import Cause, NodeVerdict, Preflight
    from torchtune_sys.model.rule import Result
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.preflight.joint.rank import Joint
    from torchtune_sys.preflight.policy import Policy

FORMATS = ("text", "json", "prometheus", "reason", "node-patch")
BUDGETS_S = {"fast": 15.0, "standard": 60.0}
ISOLATE_S = 360.0
"""The budget with --isolate: a group that hangs takes 10 s, and of up to 16 nodes a bad one hangs in every round."""
DRAIN_LIMIT, DRAIN_WINDOW_S = 4, 3600.0
_SEVERAL = 2
"""Nodes that a hook judges for where no job says how many: a health check that looked for one alone would miss what several need."""
_TOLD_AT_MOST = 5
_SECOND_LOOK_S = 5.0
"""The least that is left of the budget for a second look at a file system that did not answer."""
_MARGIN_S = 2.0
"""What the smoke test leaves of the budget, for its end and for ours."""


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
  torchtune-sys generate slurm prolog -o /etc/slurm/prolog.d/50-torchtune-sys.sh

\b
Levels:
  fast       the host's facts, in about a second; torch is not imported
  standard   also trains a little with your Python (smoke --quick)

\b
A policy (TOML) says what is fatal, a warning or ignored, by rule, cause,
family or severity, also by partition; without one an error is fatal.
docs/preflight.md has all of it.

\b
Exit status: 0 go; 1 no-go; 2 usage; 3 could not judge; 4 internal error.
In a hook of Slurm (--hook, or SLURM_SCRIPT_CONTEXT) 2, 3 and 4 become 0 and
a line on stderr, unless --fail-closed: a checker that fails must not drain
a cluster.
""",
)
@click.option(
    "--level", type=click.Choice(tuple(BUDGETS_S)), default="fast", help="How much: fast looks, standard also trains. [fast]"
)
@click.option("--python", metavar="PATH", help="The interpreter you train with. [python3 of the active environment]")
@click.option("--policy", metavar="FILE", help="What is fatal, a warning or ignored (TOML).")
@click.option("--site-checks", metavar="DIR", help="Also run the programs in DIR: monitoring plug-ins, or JSON.")
@click.option(
    "--budget", type=float, callback=shared.seconds(0.1), metavar="S", help="End after S seconds. [15; at level standard 60]"
)
@click.option(
    "--nnodes",
    type=shared.CountOrRange(),
    metavar="N",
    help="Hosts of the job, or MIN:MAX. [from the job; in a health check 2]",
)
@click.option("--hook", type=click.Choice(HOOKS), help="Which program of Slurm's this is. [from SLURM_SCRIPT_CONTEXT]")
@click.option("--fail-closed", is_flag=True, help="In a hook, keep the exit statuses 2, 3 and 4.")
@click.option(
    "--log-after",
    type=click.IntRange(min=0),
    default=0,
    metavar="S",
    help="In a hook, what the kernel logged up to S seconds after boot is told, and drains nothing.",
)
@click.option("--drain-state", metavar="DIR", help="A directory that all nodes share: keeps how many were called bad.")
@click.option(
    "--drain-limit",
    type=shared.COUNT,
    default=DRAIN_LIMIT,
    metavar="N",
    help="With --drain-state: at most N nodes are no-go within the window. [4]",
)
@click.option(
    "--drain-window",
    type=float,
    callback=shared.seconds(1),
    default=DRAIN_WINDOW_S,
    metavar="S",
    help="With --drain-state: the window, in seconds. [3600]",
)
@click.option("--domain", default="", metavar="NAME", help="The failure domain that the limit counts in. [the job's partition]")
@click.option("--alone", is_flag=True, help="At level standard: do not join the job's other nodes.")
@click.option(
    "--rdzv-endpoint",
    metavar="HOST:PORT",
    help="Meet the agents of torchrun there, as they will: compare the facts of all nodes before torchrun starts.",
)
@click.option("--rdzv-id", default="none", metavar="ID", help="With --rdzv-endpoint: the job, as torchrun has it. [none]")
@click.option("--rdzv-is-host", type=bool, metavar="BOOL", help="Whether it is this host that all meet at. [by its addresses]")
@click.option(
    "--meet-within",
    type=float,
    callback=shared.seconds(1),
    metavar="S",
    help="Wait S seconds for the job's other nodes. [20; with --rdzv-endpoint 600]",
)
@click.option(
    "--last-call",
    type=float,
    callback=shared.seconds(),
    default=30.0,
    metavar="S",
    help="With --nnodes MIN:MAX: wait S seconds more once MIN came. [30]",
)
@click.option("--hostfile", metavar="FILE", help="The job's nodes, one a line, where no scheduler tells them.")
@click.option("--secret-file", metavar="FILE", help="A secret of the job, the same on all nodes; mode 0600.")
@click.option("--isolate", is_flag=True, help="Test groups of nodes until the bad part is named. Implies standard.")
@click.option("--topology", metavar="FILE", help="With --isolate: leaf switches, as in Slurm's topology.conf.")
@click.option("--lists", metavar="DIR", help="Write good_nodes.txt, bad_nodes.txt, exclude.txt and more there.")
@click.option("--act", is_flag=True, help="With --format node-patch, in a pod: also apply the patches to this node.")
@shared.max_tainted_option
@click.option("--facts", metavar="FILE", help="Also write the facts, small, for torchtune-sys compare.")
@click.option("--from", "from_", metavar="PATH", help="Judge a recording instead of this host, as check does.")
@shared.format_option(*FORMATS)
@shared.output_option
@click.option("-q", "--quiet", is_flag=True, help="The verdict and what is fatal only.")
@shared.color_option
def command(**options: Any) -> int:
    """Say whether a job may start on this node: go or no-go, the causes, and who is to blame."""
    from torchtune_sys.cli.terminal import environment, give, tell
    from torchtune_sys.preflight.context import where

    if options["isolate"]:
        options["level"] = "standard"
    place = options["hook"] or ("torchrun" if options["rdzv_endpoint"] is not None else where(environment()))
    _refuse_contradictions(options, place)
    is_hook = place in HOOKS and not options["fail_closed"]
    try:
        found = _judged(options, place)
        if options["lists"]:
            from torchtune_sys.cli.joint_run import write_lists

            write_lists(options["lists"], found)
        give(_rendered(found, options), options["output"], machine=options["format_"] != "text")
    except UserError as error:
        if not is_hook:
            raise
        tell(f"torchtune-sys: pre-flight could not judge this node, and keeps it in service: {error.seen}")
        return 0
    except Exception as error:
        if not is_hook:
            raise
        tell(f"torchtune-sys: pre-flight failed (a bug), and keeps this node in service: {type(error).__name__}: {error}")
        return 0
    if place in HOOKS:
        _tell_unknown(found)
    if place == "epilog":
        _tell_leftovers(found)
    status = _status(found)
    if is_hook and status in (USAGE, UNJUDGED, INTERNAL):
        tell("torchtune-sys: pre-flight could not judge this node, and keeps it in service")
        return 0
    return status


def _refuse_contradictions(options: Mapping[str, Any], place: str) -> None:
    """Raises UserError."""
    if options["isolate"] and (options["alone"] or options["from_"] or place in HOOKS):
        other = "--alone" if options["alone"] else "--from" if options["from_"] else f"a {place}"
        raise UserError(f"--isolate tests nodes together, and {other} looks at one", "leave out one of them")
    if options["topology"] and not options["isolate"]:
        raise UserError("--topology tells --isolate which nodes are behind which switch", "give --isolate, too")
    if options["act"] and options["format_"] != "node-patch":
        raise UserError("--act: what would be applied is the form node-patch", "--format node-patch --act")


def _judged(options: Mapping[str, Any], place: str) -> Preflight:
    """Look, judge, run the site's checks and, at level standard, train. Raises UserError."""
    import time

    from torchtune_sys.cli import joint_run, standard
    from torchtune_sys.cli.look import now
    from torchtune_sys.cli.terminal import environment
    from torchtune_sys.model.preflight import NodeVerdict, Preflight, Scale
    from torchtune_sys.preflight import context, site_checks, verdict

    started = time.monotonic()
    budget_s = options["budget"] or (ISOLATE_S if options["isolate"] else BUDGETS_S[options["level"]])
    until_s = started + budget_s
    env = environment()
    policy = _policy(options["policy"], context.partition(env))
    joint = joint_run.begin(options, env, budget_s) if place not in HOOKS else None
    seen, causes = _of_rules(options, policy, place, until_s, joint)
    if options["site_checks"] and (joint is None or joint.speaks):
        causes += site_checks.run(options["site_checks"], policy, _plain(env), until_s)
    if options["level"] == "standard" and joint is None:
        causes += _of_training(options, policy, until_s)
    elif options["level"] == "fast" and not options["from_"]:
        causes += standard.counting(seen, policy, hook=place in HOOKS)
    name = context.node_name(env, _host_name(seen)) if not options["from_"] else _host_name(seen)
    node = NodeVerdict(node=name, verdict=verdict.verdict(causes), causes=verdict.ordered(causes))
    node = _within_limit(node, options, context.partition(env))
    time_, epoch_s = now()
    found = Preflight(
        version=__version__,
        time=time_,
        epoch_s=epoch_s,
        where=place,
        level=options["level"],
        seconds=time.monotonic() - started,
        verdict=node.verdict,
        nodes=(node,),
        scale=Scale(nodes=1, ranks=seen.intent.ranks or 1),
        proof=_proof(options, place, seen, epoch_s),
    )
    return found if joint is None else joint_run.finish(joint, seen, node, found, policy, started)


def _of_rules(
    options: Mapping[str, Any], policy: Policy, place: str, until_s: float, joint: Joint | None
) -> tuple[Snapshot, list[Cause]]:
    """The facts and what the rules find. In a hook, neither holds anything of the process that asks."""
    import time

    from torchtune_sys import engine
    from torchtune_sys.cli import joint_run
    from torchtune_sys.cli.look import look
    from torchtune_sys.host.children.left_processes import at_work, left_processes
    from torchtune_sys.preflight import host_only, own_checks, verdict
    from torchtune_sys.rules import CATALOGUE

    looked = {**shared.NO_INTENT, "root": None, "from_": options["from_"], "python": options["python"]}
    looked["python_is_judged"] = True  # that it is gone on this node is a reason against the node
    looked["nodes"] = options["nnodes"][1] if options["nnodes"] else (_SEVERAL if place == "health-check" else None)
    looked["timeout"] = max(until_s - time.monotonic(), 0.1)
    causes = []
    if place in HOOKS:
        looked["data"] = host_only.JOB_PLACES if options["from_"] else host_only.places(_mountinfo())
        seen = host_only.host_only(_patiently(looked, until_s))
        if not options["from_"]:
            seen = host_only.without(seen, at_work(host_only.on_gpus(seen)))
            causes += own_checks.of_leftovers(left_processes(), policy)
    elif joint is not None:
        looked["nodes"] = joint.job.nodes
        looked["data"] = host_only.places(_mountinfo()) if joint.speaks else ()
        seen = look(looked, only=joint_run.families(joint))
        if not joint.speaks:
            return seen, []
    else:
        seen = look(looked)
    params = policy.params if place not in HOOKS else {**host_only.FULL, **policy.params}
    results = engine.judge(seen, CATALOGUE, params)
    if joint is not None and joint.port_was_free:  # who listens there now is the joint part itself
        results = tuple(result for result in results if result.rule.id != "master-port-in-use")
    if options["facts"]:
        _write_facts(options, seen, results, place)
    if place in HOOKS and options["log_after"]:
        fresh = engine.judge(host_only.log_after(seen, options["log_after"]), CATALOGUE, params)
        causes += verdict.of_known(results, fresh, policy)
        results = fresh
    causes += verdict.of_results(results, policy, seen.intent.nodes, hook=place in HOOKS)
    causes += own_checks.of_quota(seen, policy)
    return seen, causes


def _patiently(looked: Mapping[str, Any], until_s: float) -> Snapshot:
    """The look of a hook. Where a file system did not answer it is asked once more: a server that is busy for some seconds drains nobody."""
    import time

    import msgspec

    from torchtune_sys.cli.look import look
    from torchtune_sys.preflight import host_only

    seen = look(looked, only=host_only.FAMILIES)
    left_s = until_s - time.monotonic()
    if left_s < _SECOND_LOOK_S or looked["from_"] or not host_only.hangs(seen.storage):
        return seen
    again = look({**looked, "timeout": left_s}, only=("storage",))
    return msgspec.structs.replace(seen, storage=again.storage)


def _write_facts(options: Mapping[str, Any], seen: Snapshot, results: tuple[Result, ...], place: str) -> None:
    """In a hook, a file that cannot be written is told, and changes no verdict."""
    from torchtune_sys.cli.facts import facts_line
    from torchtune_sys.cli.terminal import give, tell

    try:
        give(facts_line(seen, results), options["facts"], machine=True)
    except UserError as error:
        if place not in HOOKS or options["fail_closed"]:
            raise
        tell(f"torchtune-sys: the facts were not written: {error.seen}")


def _mountinfo() -> str:
    from torchtune_sys.host.live import LiveHost

    text = LiveHost().text("/proc/self/mountinfo")
    return text if isinstance(text, str) else ""


def _of_training(options: Mapping[str, Any], policy: Policy, until_s: float) -> list[Cause]:
    import time

    from torchtune_sys.cli import standard
    from torchtune_sys.preflight import verdict

    left = until_s - _MARGIN_S - time.monotonic()
    if left < 1:
        return [verdict.fault("no time is left of the budget for the training: give more with --budget")]
    return standard.trained(options["python"], policy, until_s - _MARGIN_S)


def _tell_unknown(found: Preflight) -> None:
    """For the log: why a node was not judged."""
    from torchtune_sys.cli.terminal import tell
    from torchtune_sys.model.preflight import Go, Weight

    node = found.nodes[0]
    unknown = [cause for cause in node.causes if cause.weight is Weight.UNKNOWN] if node.verdict is Go.UNKNOWN else []
    for cause in unknown[:_TOLD_AT_MOST]:
        tell(f"torchtune-sys: could not be judged: {cause.rule}: {cause.seen}")
    if len(unknown) > _TOLD_AT_MOST:
        tell(f"torchtune-sys: {len(unknown) - _TOLD_AT_MOST} more could not be judged")


def _tell_leftovers(found: Preflight) -> None:
    """For the log: what a job left behind, which is no reason to drain the node unless the policy says so."""
    from torchtune_sys.cli.terminal import environment, tell
    from torchtune_sys.model.preflight import Weight
    from torchtune_sys.preflight.policy import LEFT_BEHIND

    job = environment().get("SLURM_JOB_ID", "")
    for cause in found.nodes[0].causes:
        if cause.weight is Weight.WARNING and LEFT_BEHIND & {cause.cause, cause.rule}:
            tell(f"torchtune-sys: after job {job}: [{cause.blame.value}] {cause.cause}: {cause.seen}")


def _within_limit(node: NodeVerdict, options: Mapping[str, Any], partition: str) -> NodeVerdict:
    """The verdict, unless too many other nodes were called bad just now."""
    import msgspec

    from torchtune_sys.model.preflight import Go
    from torchtune_sys.preflight.drain_limit import DrainLimit

    if node.verdict is not Go.NO_GO or not options["drain_state"]:
        return node
    limit = DrainLimit(
        folder=options["drain_state"],
        nodes=options["drain_limit"],
        window_s=options["drain_window"],
        domain=options["domain"] or partition,
    )
    against = limit.hold(node.node)
    if against is None:
        return node
    return msgspec.structs.replace(node, verdict=Go.UNKNOWN, causes=(against, *node.causes))


def _policy(path: str | None, partition: str) -> Policy:
    from torchtune_sys.preflight.policy import Policy, parse_policy

    if not path:
        return Policy()
    from torchtune_sys.host.children.apart import text_of
    from torchtune_sys.rules import CATALOGUE

    return parse_policy(text_of(path, "--policy names a TOML file that can be read"), path, CATALOGUE, partition)


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    """For programs of the site: a Prolog has neither PATH nor HOME."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **{n: v for n, v in env.items() if n.startswith("SLURM")}}


def _host_name(seen: Snapshot) -> str:
    from torchtune_sys.cli.privilege import node_name
    from torchtune_sys.model.values import Missing

    known = None if isinstance(seen.system, Missing) else seen.system.hostname
    return known if isinstance(known, str) and known else node_name()


def _proof(options: Mapping[str, Any], place: str, seen: Snapshot, epoch_s: float) -> str:
    """What the last smoke test said of this node and session; a hook has no session."""
    if place in HOOKS or options["from_"]:
        return ""
    from torchtune_sys.cli.proofs import standing
    from torchtune_sys.host.live import LiveHost

    return standing(LiveHost(), seen, epoch_s)


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
    from torchtune_sys.cli.terminal import style

    return render.text(found, style(options["color"], options["output"]), quiet=options["quiet"])


def _status(found: Preflight) -> int:
    from torchtune_sys.model.preflight import Go

    return {Go.GO: 0, Go.NO_GO: 1, Go.UNKNOWN: UNJUDGED}[found.verdict]
