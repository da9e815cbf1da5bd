"""Run the pre-flight of this node: snapshot, rules, site checks, training; with the job's other nodes if there are any."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from torchtune_sys import __version__, engine
from torchtune_sys.cli import options as shared
from torchtune_sys.cli.privilege import node_name, tell_of_others
from torchtune_sys.cli.take_snapshot import look, now
from torchtune_sys.cli.terminal import environment, give, tell
from torchtune_sys.cli.watch import ISOLATE_BUDGET_S, PREFLIGHT_BUDGETS_S
from torchtune_sys.errors import CannotWrite, UserError
from torchtune_sys.host.children.apart import text_of
from torchtune_sys.host.children.left_processes import at_work, left_processes
from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.preflight import Cause, Go, NodeVerdict, Preflight, Scale
from torchtune_sys.model.snapshot import container_told
from torchtune_sys.model.values import Missing
from torchtune_sys.preflight import context, host_only, own_checks, site_checks, verdict
from torchtune_sys.preflight.hooks import HOOKS
from torchtune_sys.preflight.policy import Policy, parse_policy
from torchtune_sys.rules import CATALOGUE

if TYPE_CHECKING:
    from torchtune_sys.model.rule import Result
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.preflight.joint.rank import Joint

_SEVERAL = 2
"""Number of nodes that the health check assumes without a job; judging for one node would miss what several need."""


_SECOND_LOOK_S = 5.0
"""Time that must be left in the budget to ask a file system again that did not answer."""


_MARGIN_S = 2.0
"""Part of the budget that the smoke test leaves for shutting down."""


def budget_s_of(options: Mapping[str, Any]) -> float:
    """Return the seconds that a pre-flight may take."""
    return float(options["budget"] or (ISOLATE_BUDGET_S if options["isolate"] else PREFLIGHT_BUDGETS_S[options["level"]]))


def judged(options: Mapping[str, Any], place: str) -> Preflight:
    """Read the node, judge it, run the site's checks and, at level standard, train. Raises UserError."""
    started = time.monotonic()
    budget_s = budget_s_of(options)
    until_s = started + budget_s
    env = environment()
    policy = _policy(options["policy"], context.partition(env))
    joint = _joint(options, env, budget_s) if place not in HOOKS else None
    seen, causes = _of_rules(options, policy, place, until_s, joint)
    if options["site_checks"] and (joint is None or joint.speaks):
        causes += site_checks.run(options["site_checks"], policy, _plain(env), until_s)
    if options["level"] == "standard" and joint is None:
        causes += _of_training(options, policy, until_s)
    elif options["level"] == "fast" and not options["from_"]:
        from torchtune_sys.cli import standard_level

        earlier = standard_level.causes_that_count(seen, policy, hook=place in HOOKS)
        known = {cause.cause for cause in earlier}  # what an earlier training found in full is not told in short beside it
        causes = [cause for cause in causes if cause.rule != own_checks.TORCH or cause.cause not in known] + earlier
    name = context.node_name(env, _host_name(seen)) if not options["from_"] else _host_name(seen)
    node = NodeVerdict(node=name, verdict=verdict.verdict(causes), causes=verdict.ordered(causes))
    node = _within_limit(node, options, context.partition(env)) if joint is None else node
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
    if joint is None:
        return found
    from torchtune_sys.cli import joint_run

    return joint_run.finish(joint, seen, node, found, policy, started)


def _joint(options: Mapping[str, Any], env: Mapping[str, str], budget_s: float) -> Joint | None:
    """Return this rank's part in the pre-flight of all nodes; None where there is none. Raises UserError."""
    if options["rdzv_endpoint"] is None and (options["level"] != "standard" or options["from_"] or options["alone"]):
        for name in ("hostfile", "secret_file", "meet_within"):
            if options[name]:
                tell(f"--{name.replace('_', '-')} has no effect: this node is judged alone (level {options['level']})")
        return None
    from torchtune_sys.cli import joint_run  # 190 ms

    joint = joint_run.begin(options, env, budget_s)
    if joint is not None and options["drain_state"]:
        tell("--drain-state has no effect: the verdict is that of all nodes of the job, and drains none")
    return joint


def _of_rules(
    options: Mapping[str, Any], policy: Policy, place: str, until_s: float, joint: Joint | None
) -> tuple[Snapshot, list[Cause]]:
    """Return the facts and what the rules find. In a hook, neither holds anything of the process that asks."""
    in_hook = place in HOOKS
    seen, causes = _seen(options, policy, place, until_s, joint)
    if joint is not None and not joint.speaks:
        return seen, []
    params = {**host_only.FULL, **policy.params} if in_hook else policy.params
    results = engine.judge(seen, CATALOGUE, params)
    if joint is not None:
        results = verdict.without_own(results, listens=joint.port_was_free)
    if options["facts"]:
        _write_facts(options, seen, results, place)
    if in_hook and options["log_after"]:
        fresh = engine.judge(host_only.log_after(seen, options["log_after"]), CATALOGUE, params)
        causes += verdict.of_known(results, fresh, policy)
        results = fresh
    causes += verdict.of_results(results, policy, seen.intent.nodes, hook=in_hook, contained=bool(container_told(seen)))
    causes += own_checks.of_quota(seen, policy)
    if joint is None and options["level"] == "fast":  # else training says it
        causes += own_checks.of_torch(seen, policy)
    return seen, causes


def _seen(
    options: Mapping[str, Any], policy: Policy, place: str, until_s: float, joint: Joint | None
) -> tuple[Snapshot, list[Cause]]:
    """Return the facts of this node, and in a hook what earlier jobs left behind."""
    looked = {**shared.NO_INTENT, "root": None, "from_": options["from_"], "python": options["python"]}
    looked["python_is_judged"] = True  # that it is gone on this node is a reason against the node
    looked["nodes"] = options["nnodes"][1] if options["nnodes"] else (_SEVERAL if place == "health-check" else None)
    looked["timeout"] = max(until_s - time.monotonic(), 0.1)
    if place in HOOKS:
        looked["data"] = host_only.JOB_PLACES if options["from_"] else host_only.places(_mountinfo())
        seen = host_only.host_only(_patiently(looked, until_s), pod=options["format_"] == "node-patch")
        if options["from_"]:
            return seen, []
        seen = host_only.without(seen, at_work(host_only.on_gpus(seen)))
        return seen, list(own_checks.of_leftovers(left_processes(), policy))
    if joint is None:
        return look(looked), []
    from torchtune_sys.cli import joint_run

    looked["nodes"] = joint.job.nodes
    looked["data"] = host_only.places(_mountinfo()) if joint.speaks else ()
    return look(looked, only=joint_run.families(joint)), []


def _patiently(looked: Mapping[str, Any], until_s: float) -> Snapshot:
    """Return the facts for a hook. A file system that did not answer is asked again, so that a server that is busy for seconds drains no node."""
    seen = look(looked, only=host_only.FAMILIES)
    left_s = until_s - time.monotonic()
    if left_s < _SECOND_LOOK_S or looked["from_"] or not host_only.hangs(seen.storage):
        return seen
    again = look({**looked, "timeout": left_s}, only=("storage",))
    return msgspec.structs.replace(seen, storage=again.storage)


def _write_facts(options: Mapping[str, Any], seen: Snapshot, results: tuple[Result, ...], place: str) -> None:
    """Write the facts file. In a hook, a failure is reported and does not change the verdict."""
    from torchtune_sys.cli.facts import facts_line

    try:
        give(facts_line(seen, results), options["facts"], machine=True)
    except UserError as error:
        if place not in HOOKS or options["fail_closed"]:
            raise
        tell(f"torchtune-sys: the facts were not written: {error.seen}")


def _mountinfo() -> str:
    text = LiveHost().text("/proc/self/mountinfo")
    return text if isinstance(text, str) else ""


def _of_training(options: Mapping[str, Any], policy: Policy, until_s: float) -> list[Cause]:
    from torchtune_sys.cli import standard_level

    left = until_s - _MARGIN_S - time.monotonic()
    if left < 1:
        return [verdict.fault("the budget leaves no time for the training: raise --budget")]
    try:
        return standard_level.train_and_keep(options["python"], policy, until_s - _MARGIN_S)
    except CannotWrite as error:  # what else was found still counts
        return [verdict.fault(f"no training, because there is no place for its files: {error.seen}")]


def _within_limit(node: NodeVerdict, options: Mapping[str, Any], partition: str) -> NodeVerdict:
    """Return the verdict, unless too many other nodes were called bad just now."""
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
    if not path:
        return Policy()
    text = text_of(path, "--policy names a TOML file that can be read")  # which has a deadline of its own
    tell_of_others("--policy", path)
    return parse_policy(text, path, CATALOGUE, partition)


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the site's programs; a Prolog has neither PATH nor HOME."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **{n: v for n, v in env.items() if n.startswith("SLURM")}}


def _host_name(seen: Snapshot) -> str:
    known = None if isinstance(seen.system, Missing) else seen.system.hostname
    return known if isinstance(known, str) and known else node_name()


def _proof(options: Mapping[str, Any], place: str, seen: Snapshot, epoch_s: float) -> str:
    """Return what the last smoke test said of this node and session; a hook has no session, and launchers do not train here."""
    if place in (*HOOKS, "torchrun") or options["from_"]:
        return ""
    from torchtune_sys.cli.proofs import last_pass

    return last_pass(LiveHost(), seen, epoch_s)
