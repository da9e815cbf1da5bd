"""The joint part of ``preflight``: start it before anything else, finish it with the verdict of all nodes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from torchtune_sys.cli.privilege import node_name
from torchtune_sys.cli.terminal import environment, is_terminal, status, tell
from torchtune_sys.errors import CannotWrite, UnreadableInput, UserError
from torchtune_sys.host.children.apart import text_of
from torchtune_sys.host.children.child_environment import for_training
from torchtune_sys.host.children.examined import runner
from torchtune_sys.host.files import READABLE, remove_older, write_atomically
from torchtune_sys.host.peers.wire import Gone
from torchtune_sys.host.secrets.values import HIDDEN
from torchtune_sys.model import codec
from torchtune_sys.model.preflight import Blame, Cause, Go, NodeVerdict, Preflight, Scale, Weight
from torchtune_sys.model.values import Missing, known
from torchtune_sys.preflight import verdict
from torchtune_sys.preflight.context import node_name as known_name
from torchtune_sys.preflight.joint.agents import job_of as job_of_agents
from torchtune_sys.preflight.joint.facts import facts_of
from torchtune_sys.preflight.joint.job import SECRET_VARIABLE, Job, Leaf, as_bytes, job_of, listed_as
from torchtune_sys.preflight.joint.judge.finding import JointFinding
from torchtune_sys.preflight.joint.judge.whole import Whole, cause_of
from torchtune_sys.preflight.joint.names import hosts_of, switches_of
from torchtune_sys.preflight.joint.rank import Joint
from torchtune_sys.render.layout import clean
from torchtune_sys.render.node_set import is_host_name

if TYPE_CHECKING:
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.preflight.policy import Policy

_MEETING_S = 600.0
"""c10d waits as long for agents (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, RendezvousTimeout)."""
_AFTER_MEETING_S = 30.0
"""Time for exchanging all facts after all agents have arrived."""


def begin(options: Mapping[str, Any], env: Mapping[str, str], budget_s: float) -> Joint | None:
    """Return this rank's part, where the environment names several ranks; None alone, and at other levels. With an endpoint, this launcher's. Raises UserError."""
    meets = options["rdzv_endpoint"] is not None
    if meets and (options["level"] != "fast" or options["from_"] or options["alone"] or not options["nnodes"]):
        todo = "give --nnodes, too; --level standard, --from and --alone do not go with it"
        raise UserError("--rdzv-endpoint: torchrun's agents meet at level fast, and need to know their number", todo)

    hosts = hosts_of(_text(options["hostfile"], "--hostfile")) if options["hostfile"] else ()
    secret = _secret(options["secret_file"])
    job = _agents_job(options, env, hosts, secret) if meets else job_of(env, hosts, secret, os.uname().nodename)
    if job is None and options["isolate"]:
        raise UserError("--isolate needs a job of several nodes", "start it by srun, mpirun or torchrun, one rank or more a node")
    if job is None:
        if hosts:
            tell(
                "--hostfile has no effect: no launcher's ranks are in the environment. Start it on each node by srun, mpirun or torchrun"
            )
        return None
    switches = switches_of(_text(options["topology"], "--topology")) if options["topology"] else {}
    leaves = tuple(Leaf(name=name, nodes=nodes) for name, nodes in switches.items())
    if options["topology"] and not leaves:
        raise UserError(f"{options['topology']}: it lists no switch with nodes", "--topology names a topology.conf of Slurm's")
    job = msgspec.structs.replace(job, isolates=options["isolate"], leaves=leaves)
    try:
        meeting_s = options["meet_within"] or (_MEETING_S if meets else None)
        return Joint(job, (_AFTER_MEETING_S if meets else budget_s) + (meeting_s or 0.0), meeting_s)
    except Gone as error:
        raise UserError(f"the joint part did not start: {error}", "--alone judges this node only") from None


def _agents_job(options: Mapping[str, Any], env: Mapping[str, str], hosts: tuple[str, ...], secret: bytes) -> Job | None:
    """Return the agents' job; None if there is only one agent, which meets nobody. Raises UserError."""
    least, most = options["nnodes"]
    label, labels = listed_as(env, hosts, known_name(env, node_name()), most)
    job = job_of_agents(
        options["rdzv_endpoint"],
        options["rdzv_id"],
        least,
        most,
        label=label,
        labels=labels,
        secret=secret or as_bytes(env.get(SECRET_VARIABLE, "")),
        last_call_s=options["last_call"],
        is_host=options["rdzv_is_host"],
        name=known_name(env, node_name()),
    )
    return job if most > 1 else None


def _text(path: str, option: str) -> str:
    return text_of(path, f"{option} names a file that can be read")


def _secret(path: str | None) -> bytes:
    """Return the job's secret. A file that others can read holds none."""
    if not path:
        return b""

    text = _text(path, "--secret-file").strip()
    try:
        is_open = os.stat(path).st_mode & 0o077
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}", "--secret-file names a file that can be read") from None
    if is_open or not text:
        raise UserError(f"{path}: {'others may read or write it' if is_open else 'it is empty'}", f"chmod 600 {path}")
    return as_bytes(text)


def families(joint: Joint) -> tuple[str, ...] | None:
    """Return the families that this rank reads; None for all. One rank per node judges the node."""
    return None if joint.speaks else ("python", "session", "system")


def finish(joint: Joint, seen: Snapshot, node: NodeVerdict, found: Preflight, policy: Policy, started_s: float) -> Preflight:
    """Send this node's facts, take part, and return the verdict of all nodes. Raises UserError."""
    if joint.speaks:
        if joint.job.agents is not None:
            joint.note("worker/0", _torch_of(seen))
        joint.note("node", msgspec.to_builtins(node.causes))
        joint.note("facts", msgspec.to_builtins(facts_of(seen, node.node, environment())))
    python = "" if isinstance(seen.python, Missing) or isinstance(seen.python.executable, Missing) else seen.python.executable
    user = runner(python) if python else None
    if isinstance(user, Missing):
        raise UserError(f"{python}: {user.detail}", user.remedy)

    def show(text: str) -> None:
        if is_terminal(sys.stderr):
            status(clean(text))
        elif joint.job.agents is not None and " agents came" in text:
            tell(f"torchtune-sys: {clean(text)}")

    answer = joint.run(python, for_training(user), user, show)
    show("")
    result = _verdict_of_all(joint, answer, node, found, policy)
    return msgspec.structs.replace(result, seconds=time.monotonic() - started_s)


def _verdict_of_all(
    joint: Joint, answer: Mapping[str, Any] | None, node: NodeVerdict, found: Preflight, policy: Policy
) -> Preflight:
    """Return the verdict from what the coordinator told this node; None where it told nothing."""
    if joint.job.agents is None:
        found = msgspec.structs.replace(found, scale=Scale(nodes=joint.job.nodes, ranks=found.scale.ranks))
    if answer is None:
        return _partial(found, node, "no verdict of all nodes came")
    if "alone" in answer:
        return msgspec.structs.replace(found, proof=_alone(joint, answer["alone"]))
    if "never" in answer:
        return _never(found, joint, answer["never"])
    if "unfit" in answer:
        return _unfit(found, node, answer["cause"], answer["unfit"])
    if "cut-off" in answer:
        return _partial(found, node, answer["cut-off"])
    try:
        whole = codec.convert(answer, Whole)
    except (msgspec.ValidationError, RecursionError):
        return _partial(found, node, "the coordinator sent an invalid verdict")
    judged = _with_own(_weighed(found, whole, policy, joint.job.nodes), node)
    return judged if joint.job.agents is None else _of_agent(judged, whole, {node.node, joint.job.name(joint.node)}, joint.job)


def _with_own(judged: Preflight, own: NodeVerdict) -> Preflight:
    """Return the verdict of all, in which this node is not better than it judged itself: a node that coordinates, and lies, decides nothing of that."""
    told = next((node for node in judged.nodes if node.node == own.node), None)
    its_verdict = judged.verdict if told is None else told.verdict  # which may know it by another name
    if own.verdict is not Go.NO_GO or its_verdict is Go.NO_GO:
        return judged
    others = tuple(node for node in judged.nodes if node is not told)
    return msgspec.structs.replace(judged, nodes=(*others, own), verdict=Go.NO_GO)


def _torch_of(seen: Snapshot) -> dict[str, str]:
    """Return what the ranks will report about torch, as read from the interpreter's files."""
    if isinstance(seen.python, Missing) or isinstance(seen.python.torch, Missing):
        return {}
    torch = seen.python.torch
    return {"torch": torch.version, "cuda": known(torch.cuda, ""), "python": known(seen.python.version, "")}


def _alone(joint: Joint, seen: str) -> str:
    agents = joint.job.agents
    port = agents.endpoint_port if agents is not None else 0
    return f"no other agent was found ({joint.job.master} port {port}: {seen}): this node was judged on its own"


def _never(found: Preflight, joint: Joint, seen: str) -> Preflight:
    """Return no-go for the node at the endpoint. No agent can start without it, because the rendezvous is there."""
    name = joint.job.master
    seen = f"no agent joined at the endpoint {name} port {joint.job.ports[0]}: {seen}"
    cause = cause_of(JointFinding(part="meeting", cause="node-never-came", seen=seen))
    missing = NodeVerdict(node=name, verdict=Go.NO_GO, causes=(cause,))
    return msgspec.structs.replace(
        found,
        verdict=Go.NO_GO,
        nodes=(*found.nodes, missing),
        absent=(name,),
        scale=Scale(nodes=2, ranks=1),
    )


def _unfit(found: Preflight, node: NodeVerdict, cause: str, seen: str) -> Preflight:
    """Return no-go for this agent's host, where all would meet, and nobody can."""
    causes = verdict.ordered([*node.causes, cause_of(JointFinding(part="meeting", cause=cause, seen=seen))])
    both = msgspec.structs.replace(node, causes=causes, verdict=verdict.verdict(causes))
    return msgspec.structs.replace(found, nodes=(both,), verdict=Go.NO_GO)


def _of_agent(found: Preflight, whole: Whole, own: set[str], job: Job) -> Preflight:
    """Return the verdict for this agent. It goes on if its own node is fit, enough others are, and so is the one that hosts the rendezvous.

    A client of torch's store at the endpoint may be an agent that skipped the pre-flight, or anybody. If all agents have arrived it belongs to none of
    them, and if the job has a secret it is not counted.
    """
    bad = {node.node for node in found.nodes if node.verdict is Go.NO_GO}
    is_stranger = sum(whole.agents.values()) >= job.world
    counted = 0 if is_stranger or job.has_secret else len(whole.passed)
    left = sum(count for name, count in whole.agents.items() if name not in bad) + counted
    is_of_all = any(cause.weight is Weight.FATAL for cause in found.causes)
    suffice = left >= whole.agents_at_least and whole.store not in bad and not (found.links or is_of_all)
    result = found.verdict
    if result is Go.NO_GO and suffice and not bad & own:
        result = Go.UNKNOWN if any(node.verdict is Go.UNKNOWN for node in found.nodes) else Go.GO
    nodes, strangers = list(found.nodes), list(found.causes)
    for address in whole.passed:
        if is_stranger:
            strangers.append(_stranger(address))
            continue
        cause = Cause(
            cause="checker-fault",
            rule="joint:meeting",
            blame=Blame.CHECKER,
            weight=Weight.UNKNOWN,
            seen=f"its agent joined the rendezvous without a pre-flight ({address})",
        )
        nodes.append(NodeVerdict(node=address, verdict=verdict.verdict((cause,)), causes=(cause,)))
        result = Go.UNKNOWN if result is Go.GO else result
    others = 0 if is_stranger else len(whole.passed)
    scale = Scale(nodes=len(whole.agents) + others + len(found.absent), ranks=sum(whole.agents.values()) + others)
    return msgspec.structs.replace(found, verdict=result, nodes=tuple(nodes), causes=tuple(strangers), scale=scale)


def _stranger(address: str) -> Cause:
    """Return the warning about a connection that does not belong to the job."""
    seen = f"{address} is connected to torchrun's endpoint and is not one of the agents, which have all joined: torch's store has no password, so let only the job's nodes reach it"
    return Cause(cause="checker-fault", rule="joint:meeting", blame=Blame.NETWORK, weight=Weight.WARNING, seen=seen)


def _partial(found: Preflight, node: NodeVerdict, seen: str) -> Preflight:
    """Return the verdict of this node alone, because there is none for all nodes."""
    causes = verdict.ordered([*node.causes, verdict.fault(seen)])
    both = msgspec.structs.replace(node, causes=causes, verdict=verdict.verdict(causes))
    whole = Go.NO_GO if both.verdict is Go.NO_GO else Go.UNKNOWN
    return msgspec.structs.replace(found, nodes=(both,), verdict=whole)


def _weighed(found: Preflight, whole: Whole, policy: Policy, nodes: int) -> Preflight:
    """Return the verdict of all, as the site's policy weighs what was found between nodes."""

    def weighed(cause: Cause) -> Cause | None:
        if not cause.rule.startswith("joint:") or cause.weight is Weight.UNKNOWN:
            return cause
        weight = policy.weight_of(cause.cause, cause.weight)
        return None if weight is None else msgspec.structs.replace(cause, weight=weight)

    judged = []
    for node in whole.all_nodes():
        causes = verdict.ordered(cause for cause in map(weighed, node.causes) if cause is not None)
        judged.append(msgspec.structs.replace(node, causes=causes, verdict=verdict.verdict(causes)))
    links = tuple(link for link in whole.links if policy.weight_of(link.cause, Weight.FATAL) is not None)
    causes = tuple(cause for cause in map(weighed, whole.causes) if cause is not None)
    weights = {cause.weight for cause in causes}
    if any(policy.weight_of(link.cause, Weight.FATAL) is Weight.FATAL for link in links):
        weights.add(Weight.FATAL)
    return msgspec.structs.replace(
        found,
        verdict=_reweighed(whole.verdict, {node.verdict for node in judged}, weights),
        nodes=tuple(judged),
        links=links,
        suspects=whole.suspects,
        absent=whole.absent,
        causes=causes,
        isolation=whole.isolation,
        scale=Scale(nodes=nodes, ranks=whole.ranks),
    )


def _reweighed(of_all: Go, of_nodes: set[Go], weights: set[Weight]) -> Go:
    """Return the verdict of all after the policy changed weights. ``weights`` are those of causes and links that are no node's."""
    if of_all is Go.GO and Go.NO_GO in of_nodes:
        return Go.NO_GO
    if of_all is Go.NO_GO and Go.NO_GO not in of_nodes and Weight.FATAL not in weights:
        return Go.UNKNOWN if Weight.UNKNOWN in weights or Go.UNKNOWN in of_nodes else Go.GO
    return of_all


LISTS = ("good_nodes.txt", "bad_nodes.txt", "exclude.txt", "hostfile", "avoid.txt", "isolation.svg")
"""What ``--lists`` writes; the last two where nodes are isolated."""


def tells_of_all(found: Preflight) -> bool:
    """Return whether a verdict tells of each node of the job, at least half of which came: one that came when the others had ended, or that got no verdict, knows
    no good nodes."""
    wanted, told = found.scale.nodes, len(found.nodes)
    return told >= wanted and 2 * (told - len(found.absent)) >= wanted


def write_lists(folder: str, found: Preflight, *, isolates: bool = False) -> None:
    """Write the nodes to go on with, and those to leave out, as launchers take them; of an earlier verdict nothing stays. Raises CannotWrite."""
    refused = {*(node.node for node in found.nodes if node.verdict is Go.NO_GO), *found.absent}

    def listed(names: Iterable[str]) -> list[str]:
        """Return those that a launcher knows: one that was hidden as a secret is nobody's name."""
        return [name for name in names if is_host_name(name) and name != HIDDEN]

    bad = sorted(listed(refused))
    good = listed(node.node for node in found.nodes if node.node not in refused)
    texts = {
        "good_nodes.txt": "".join(f"{name}\n" for name in good),
        "bad_nodes.txt": "".join(f"{name}\n" for name in bad),
        "exclude.txt": f"--exclude={','.join(bad)}\n" if bad else "",
        "hostfile": "".join(f"{name}\n" for name in good),
    }
    if found.isolation is not None or isolates:
        ends = listed(found.isolation.exclude) if found.isolation is not None else []
        texts["avoid.txt"] = "".join(f"{name}\n" for name in sorted({*bad, *ends}))
    if found.isolation is not None and found.isolation.heat is not None:
        from torchtune_sys.render.isolation import svg

        texts["isolation.svg"] = svg(found.isolation)
    try:
        for name, text in texts.items():
            write_atomically(os.path.join(folder, name), text, by_root=READABLE)
    except CannotWrite:
        with suppress(CannotWrite):
            remove_older(folder, LISTS, 0.0)
        raise
    remove_older(folder, (name for name in LISTS if name not in texts), 0.0)
