"""Make the verdict over all nodes: absent and dead nodes, and which other findings these explain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Any

import msgspec

from torchtune_sys.model import codec
from torchtune_sys.model.preflight import Blame, Cause, Go, IsolationReport, Link, NodeVerdict, Weight
from torchtune_sys.preflight.joint.gathered import Gathered, Node, host_says, own_names, taken
from torchtune_sys.preflight.joint.judge import collectives, compute, connections, facts, isolated
from torchtune_sys.preflight.joint.judge.finding import JointFinding
from torchtune_sys.preflight.joint.names import expanded, numbered
from torchtune_sys.render.node_set import is_host_name, node_set

_LINKS_AT_MOST = 256
_SEEN_AT_MOST, _CAUSES_AT_MOST = 1000, 64
"""Characters of what was seen, and causes of a node: the verdict is one line, whatever a node says of itself and of its ways."""
_EXPLAINS_ALL = ("node-never-came", "rank-killed", "rank-stopped", "link-down", "duplicate-address")
"""What else is seen of such a node, or on its links, follows from it."""
_EXPLAINS_RATES = ("mtu-differs-between-nodes", "cpu-quota-on-one-node")
_RATES = ("narrow-link", "link-delay", "packet-loss", "straggler-compute")


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator gives to everybody."""

    verdict: Go
    nodes: tuple[NodeVerdict, ...]
    links: tuple[Link, ...] = ()
    suspects: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    """What is no node's and no link's fault."""
    isolation: IsolationReport | None = None
    ranks: int = 0
    agents: dict[str, int] = {}
    """Where launchers take part: how many on each node that came."""
    agents_at_least: int = 0
    """So many suffice to start."""
    passed: tuple[str, ...] = ()
    """Addresses from which a launcher went on without a pre-flight."""
    store: str = ""
    """The node at which the launchers meet, and where their rendezvous will be."""
    well: str = ""
    """Nodes that are go and not among ``nodes``, as one node list."""

    def all_nodes(self) -> tuple[NodeVerdict, ...]:
        """Return all nodes, those of the list, too."""
        return (*self.nodes, *(NodeVerdict(node=name, verdict=Go.GO) for name in expanded(self.well)))


def judged(gathered: Gathered) -> Any:
    """Return the verdict, as plain JSON data."""
    return msgspec.to_builtins(whole(gathered))


def brief(judged: Any) -> Any:
    """Return the same verdict without what is said of nodes that are go: what a thousand nodes are told must not grow with their number."""
    found = codec.convert(judged, Whole)
    well = [node for node in found.nodes if node.verdict is Go.GO]
    rest = tuple(node for node in found.nodes if node.verdict is not Go.GO)
    listed = node_set(node.node for node in well if is_host_name(node.node))
    named = tuple(msgspec.structs.replace(node, causes=()) for node in well if not is_host_name(node.node))
    tests = None if found.isolation is None else msgspec.structs.replace(found.isolation, heat=None)
    return msgspec.to_builtins(msgspec.structs.replace(found, nodes=rest + named, well=listed, isolation=tests))


def whole(gathered: Gathered) -> Whole:
    """Judge everything that was gathered."""
    gathered.shown = shown(gathered)
    found = all_findings(gathered)
    if not any(f.weight is Weight.FATAL for f in found):
        found += _untried(gathered)
        found += _unfinished(gathered, found)
    absent = [node for node in gathered.missing if any(f.node == node and f.cause == "node-never-came" for f in found)]
    nodes = tuple(
        _node(gathered, node, [f for f in found if f.node == node])
        for node in sorted({*gathered.members, *(f.node for f in found if f.node is not None)})
    )
    links = [f for f in found if f.link is not None][:_LINKS_AT_MOST]
    suspects = (
        sorted({end for f in links if f.link is not None and f.cause != "network-partition" for end in f.link})
        if gathered.nodes == 2
        else []
    )
    causes = tuple(cause_of(f) for f in found if f.node is None and f.link is None)
    return Whole(
        verdict=_verdict(gathered, nodes, links, causes),
        nodes=nodes,
        links=tuple(
            Link(from_=_end(gathered, f.link[0]), to=_end(gathered, f.link[1]), cause=f.cause, seen=f.seen[:_SEEN_AT_MOST])
            for f in links
            if f.link is not None
        ),
        suspects=tuple(gathered.name(node) for node in suspects),
        absent=tuple(gathered.name(node) for node in absent),
        causes=causes,
        isolation=isolated.report(gathered),
        ranks=sum(len(member.ranks) for member in gathered.members.values()),
        **_of_agents(gathered),
    )


def shown(gathered: Gathered) -> dict[int, str]:
    """Return what nodes are called: those that came as they call themselves; the others by what is left of the list, where it is in another order than the ranks."""
    found = own_names(gathered.members, listed=gathered.names)
    missing = sorted(node for node in gathered.missing if node < len(gathered.names))
    if any(gathered.names[node] in found.values() for node in missing):
        left = [name for name in gathered.names if name not in found.values()]
        if len(left) != len(missing):
            left = [numbered(node, gathered.locals_) for node in missing]
        found.update(zip(missing, left, strict=True))
    return found


def _of_agents(gathered: Gathered) -> dict[str, Any]:
    if not gathered.agents_at_least:
        return {}
    left = {gathered.members[node].address for node in gathered.departed}
    return {
        "agents": {
            gathered.name(node): len(member.ranks) or int(gathered.has_passed(node)) for node, member in gathered.members.items()
        },
        "agents_at_least": gathered.agents_at_least,
        "passed": tuple(address for address in gathered.passed if address not in left),
        "store": gathered.name(gathered.coordinator),
    }


def cause_of(finding: JointFinding) -> Cause:
    """Return the finding as a cause of the verdict."""
    rule = f"joint:{finding.part}"
    return Cause(cause=finding.cause, rule=rule, blame=finding.blame, weight=finding.weight, seen=finding.seen[:_SEEN_AT_MOST])


def _end(gathered: Gathered, node: int) -> str:
    return gathered.name(node)


def _verdict(gathered: Gathered, nodes: Iterable[NodeVerdict], links: list[JointFinding], causes: Iterable[Cause]) -> Go:
    verdicts = {node.verdict for node in nodes}
    weights = {cause.weight for cause in causes}
    if gathered.alone:
        return Go.UNKNOWN
    if Go.NO_GO in verdicts or Weight.FATAL in weights or any(link.weight is Weight.FATAL for link in links):
        return Go.NO_GO
    if Go.UNKNOWN in verdicts or Weight.UNKNOWN in weights or not gathered.complete or gathered.faults:
        return Go.UNKNOWN
    return Go.GO


def _node(gathered: Gathered, node: int, found: list[JointFinding]) -> NodeVerdict:
    own = _own(gathered, node) if node in gathered.members else None
    causes = [_cut(cause) for cause in sorted(own or (), key=_lightest_first, reverse=True)[:_CAUSES_AT_MOST]]
    causes += [cause_of(f) for f in found]
    causes = [
        *{cause.cause: cause for cause in sorted(causes, key=_lightest_first)}.values()
    ]  # the heaviest of each, the last of equals
    if node in gathered.members and own is None and not any(cause.weight is Weight.FATAL for cause in causes):
        seen = "the node did not finish its own checks in time"
        causes.append(Cause(cause="checker-fault", rule="joint:meeting", blame=Blame.CHECKER, weight=Weight.UNKNOWN, seen=seen))
    for fault in gathered.faults if node == gathered.coordinator else ():
        causes.append(Cause(cause="checker-fault", rule="preflight", blame=Blame.CHECKER, weight=Weight.UNKNOWN, seen=fault))
    causes.sort(key=_lightest_first, reverse=True)
    weights = {cause.weight for cause in causes}
    verdict = Go.NO_GO if Weight.FATAL in weights else Go.UNKNOWN if Weight.UNKNOWN in weights else Go.GO
    return NodeVerdict(node=gathered.name(node), verdict=verdict, causes=tuple(causes))


def _cut(cause: Cause) -> Cause:
    """Return what a node says of itself, no longer than others say of it."""
    return msgspec.structs.replace(
        cause, cause=cause.cause[:_NAME_AT_MOST], rule=cause.rule[:_NAME_AT_MOST], seen=cause.seen[:_SEEN_AT_MOST]
    )


_NAME_AT_MOST = 100
_WEIGHTS = [*Weight]


def _lightest_first(cause: Cause) -> int:
    return -_WEIGHTS.index(cause.weight)


def unsound(gathered: Gathered) -> set[int]:
    """Return the nodes that are kept out of the collectives: a fault of theirs is known, and they would only hold up the others. Of a bad link, one end."""
    found = [*_meeting(gathered), *_liveness(gathered), *facts.findings(gathered)]
    named = {f.node for f in found if f.node is not None and f.weight is Weight.FATAL}
    named |= {f.node for f in compute.failures(gathered) if f.node is not None and f.weight is Weight.FATAL}
    for finding in connections.findings(gathered, named):
        if finding.node is not None:
            named.add(finding.node)
        elif finding.link is None:  # so it is between all nodes
            return {*gathered.members}
        elif not named & {*finding.link}:
            named.add(max(finding.link))
    for node, member in gathered.members.items():
        if member.via is not None:
            named.add(node)
    return {*named}


def all_findings(gathered: Gathered) -> list[JointFinding]:
    """Return all findings without what follows from something else."""
    first = [*_meeting(gathered), *_heard(gathered, _liveness(gathered)), *facts.findings(gathered)]
    duplicates = {f.node for f in first if f.cause == "duplicate-address"}
    first = [f for f in first if f.node not in duplicates or f.cause == "duplicate-address"]
    gone = {f.node for f in first if f.node is not None and f.cause in _EXPLAINS_ALL and f.weight is not Weight.WARNING}
    first = [f for f in first if f.node not in gone or f.cause in _EXPLAINS_ALL]
    found = first + connections.findings(gathered, gone)
    quotas = frozenset(f.node for f in first if f.cause == "cpu-quota-on-one-node" and f.node is not None)
    found += [f for f in compute.findings(gathered, quotas) if f.node not in gone]
    found += collectives.findings(gathered, found)
    found = [f for f in found if not (isolated.explained(gathered, f) or isolated.refuted(gathered, f))]
    slowed = {f.node for f in found if f.cause in _EXPLAINS_RATES}
    found = [f for f in found if not (f.cause in _RATES and (f.node in slowed or (f.link and slowed & {*f.link})))]
    return [_with_shapers(gathered, f) for f in found]


def _with_shapers(gathered: Gathered, finding: JointFinding) -> JointFinding:
    """Return the finding; of a slow or lossy link with what limits or disturbs the interfaces of its ends, as these say themselves: then no cable is bad."""
    ends = finding.link or (finding.node,) if finding.cause in _OF_LINKS else ()
    told = [
        f"{gathered.name(end)}: {cause.seen}"
        for end in ends
        if end is not None and end in gathered.members
        for cause in _own(gathered, end) or ()
        if cause.rule == _SHAPER
    ]
    return msgspec.structs.replace(finding, seen="; ".join((finding.seen, *told))) if told else finding


_OF_LINKS, _SHAPER = ("narrow-link", "link-delay", "packet-loss"), "network-interface-shaped"


def _own(gathered: Gathered, node: int) -> tuple[Cause, ...] | None:
    """Return what a node that came says of itself; None where it did not in time."""
    return taken(gathered.members[node].notes.get("node"), tuple[Cause, ...])


def _meeting(gathered: Gathered) -> list[JointFinding]:
    nowhere = _no_meeting(gathered)
    if nowhere:
        return nowhere
    taken = gathered.endpoint_taken
    found = [JointFinding(part="meeting", cause="master-port-in-use", node=gathered.coordinator, seen=taken)] if taken else []
    return [*found, *_missing_nodes(gathered), *_missing_ranks(gathered)]


def _no_meeting(gathered: Gathered) -> list[JointFinding]:
    """Return why this node is alone, or why nodes could not find the meeting; empty where there was one."""
    if gathered.alone:
        words = next(iter(gathered.members.values())).words if gathered.members else {}
        word = words.get(0, "no answer")
        cause = {"refused": "node-never-came"}.get(word, "master-addr-wrong")
        seen = f"neither the coordinating node ({host_says(word) or word}) nor any other node could be reached"
        return [JointFinding(part="meeting", cause=cause, link=(gathered.coordinator, 0), seen=seen)]
    if gathered.master_wrong and gathered.missing:
        ways = [(node, gathered.coordinator) for node in sorted(gathered.missing)[:_LINKS_AT_MOST]]
        return [JointFinding(part="meeting", cause="master-addr-wrong", link=way, seen=gathered.master_wrong) for way in ways]
    return []


def _missing_nodes(gathered: Gathered) -> Iterator[JointFinding]:
    happened = {event.node for event in gathered.events}
    missing = [node for node in gathered.missing if node not in happened]
    here = sorted(gathered.members)
    cut_off = [node for node in missing if gathered.missing[node] in facts.SILENT]
    if len(cut_off) == sum(gathered.missing[node] != "" for node in missing):
        cut_off = missing if cut_off else []  # of many a few were called, and none of these answers
    if len(cut_off) >= 2 and len(cut_off) * 2 >= gathered.nodes:
        seen = f"{_names(gathered, here)} | {_names(gathered, cut_off)}: the two groups cannot reach each other"
        for way in islice(product(here, cut_off), _LINKS_AT_MOST):
            yield JointFinding(part="meeting", cause="network-partition", link=way, seen=seen)
        missing = [node for node in missing if node not in cut_off]
    came = f"; present: {_names(gathered, here)}"
    elsewhere = gathered.listed_elsewhere() if missing else frozenset()
    for node in missing:
        word = "" if node in elsewhere else gathered.missing[node]  # else another node was called
        if word and node in gathered.unreached:
            yield _unreaching(gathered, node, came)
            continue
        seen = f"{host_says(word) or 'it did not join'}{came}"
        yield JointFinding(part="meeting", cause="node-never-came", node=node, seen=seen)


def _unreaching(gathered: Gathered, node: int, came: str) -> JointFinding:
    """Return the finding on a node that takes part and answers, whose own calls do not arrive: packets of one direction are dropped, or it looks for the first node elsewhere."""
    word, there = gathered.unreached[node]
    usual = facts.usual_master(gathered)
    cause = {"refused": "port-refused", **dict.fromkeys(facts.SILENT, "port-dropped")}.get(word, "node-never-came")
    if there and usual and not usual & {*there}:
        cause = "master-addr-wrong"
    meant = f" ({', '.join(there)})" if there else ""
    own = f"its own calls to MASTER_ADDR{meant}"
    ends = f"{own} meet another: {host_says(word) or word}" if cause == "node-never-came" else f"{own} do not arrive: {word}"
    seen = f"it runs the pre-flight and answers, but {ends}{came}"
    return JointFinding(part="meeting", cause=cause, node=node, seen=seen)


def _missing_ranks(gathered: Gathered) -> Iterator[JointFinding]:
    for node, member in gathered.members.items():
        fewer = [local for local in range(member.expected) if local not in member.ranks]
        dead = {event.local for event in gathered.events if event.node == node}
        if member.alive and fewer and not dead and not gathered.agents_at_least:
            ranks = ", ".join(f"{node * gathered.locals_ + local}" for local in fewer)
            seen = f"{len(member.ranks)} of {member.expected} ranks joined; missing: rank {ranks}"
            yield JointFinding(part="meeting", cause="ranks-missing", node=node, seen=seen)


def _untried(gathered: Gathered) -> Iterator[JointFinding]:
    """Nodes with a rank whose torch was not there in time: they took part in no training step and in no collective, and nothing speaks for them."""
    for node, member in gathered.members.items():
        late = [local for local in member.ranks if f"worker/{local}" not in member.notes]
        if member.alive and late and not gathered.agents_at_least:
            ranks = ", ".join(f"{node * gathered.locals_ + local}" for local in late)
            seen = f"rank {ranks} did not import torch in time, so the node took part in no training step and no collective"
            yield JointFinding(part="compute", cause="checker-fault", node=node, seen=seen, weight=Weight.UNKNOWN)
        elif member.alive and (idle := _idle(gathered, node, member)):
            seen = f"rank {', '.join(map(str, idle))} did no training step, and nobody can say how it computes"
            yield JointFinding(part="compute", cause="checker-fault", node=node, seen=seen, weight=Weight.UNKNOWN)
        elif member.alive and gathered.collectives and node not in {rank[0] for rank in gathered.collectives[0]}:
            seen = "it took part in no collective"
            yield JointFinding(part="collectives", cause="checker-fault", node=node, seen=seen, weight=Weight.UNKNOWN)


def _idle(gathered: Gathered, node: int, member: Node) -> list[int]:
    """Return the ranks of a node that answered no training step, where others did."""
    if not gathered.computes or gathered.agents_at_least:
        return []
    return [node * gathered.locals_ + local for local in member.ranks if not gathered.computes.get((node, local))]


def _unfinished(gathered: Gathered, found: Iterable[JointFinding]) -> Iterator[JointFinding]:
    """Yield what the time was up at, and who owed an answer then, where nothing else says why nobody could judge."""
    if gathered.complete or gathered.alone or any(f.weight is Weight.UNKNOWN for f in found):
        return
    owe = {node: member.unanswered_s for node, member in gathered.members.items() if member.unanswered_s}
    seen = f"the time was up at: {gathered.stage}" if gathered.stage else "the time was up before anything was tried"
    if owe and 2 * len(owe) < len(gathered.members):
        for node, seconds in owe.items():
            words = f"{seen}; an answer of this node is overdue by {seconds:.0f} s"
            yield JointFinding(part="meeting", cause="checker-fault", node=node, seen=words, weight=Weight.UNKNOWN)
    else:
        yield JointFinding(part="meeting", cause="checker-fault", seen=f"{seen} (--budget, budget_s)", weight=Weight.UNKNOWN)


def _names(gathered: Gathered, nodes: Iterable[int]) -> str:
    each = [gathered.name(node) for node in nodes]
    return ", ".join(each[:8]) + (f" and {len(each) - 8} more" if len(each) > 8 else "")


def _liveness(gathered: Gathered) -> list[JointFinding]:
    """Return the first event of each node; where the coordinator lost half of all at once, it was cut off itself."""
    first: dict[int, tuple[str, str]] = {}
    for event in sorted(gathered.events, key=lambda event: event.at_s):
        first.setdefault(event.node, (event.cause, event.seen))
    silent = [node for node, (cause, _seen) in first.items() if cause == "link-down" and node != gathered.coordinator]
    others = len(gathered.members) - 1
    if gathered.own_link_up is False or (others > 1 and len(silent) * 2 > others):
        for node in silent:
            del first[node]
        first[gathered.coordinator] = ("link-down", f"{_names(gathered, silent)} stopped answering at the same moment")
    return [
        JointFinding(
            part="liveness",
            cause=cause,
            node=node,
            seen=f"{seen}; its agent joined the rendezvous without a pre-flight" if gathered.has_passed(node) else seen,
            weight=_weight_of_gone(gathered, node),
        )
        for node, (cause, seen) in first.items()
    ]


def _weight_of_gone(gathered: Gathered, node: int) -> Weight:
    """Return what it weighs that a launcher went. One whose pre-flight ended when all had met, or that was heard at its own rendezvous, may train anyway: it is told, and decides
    nothing. The others would wait for one that went before."""
    if not gathered.agents_at_least:
        return Weight.FATAL
    is_gone = (
        bool(gathered.departed) if node == gathered.coordinator else node in gathered.departed and not gathered.has_passed(node)
    )
    return Weight.FATAL if is_gone else Weight.UNKNOWN


def _heard(gathered: Gathered, events: list[JointFinding]) -> list[JointFinding]:
    """Without the silence of others where the coordinator's own packets get lost: of 30 % TCP recovers too late now and then."""
    silent = {f.node for f in events if f.cause == "link-down" and f.node not in (None, gathered.coordinator)}
    gone = {f.node for f in events if f.node is not None and f.cause in _EXPLAINS_ALL} - silent
    if not silent or gathered.coordinator in gone:
        return events
    ours = [f for f in connections.findings(gathered, gone) if f.node == gathered.coordinator]
    loses = any(f.cause == "packet-loss" and f.weight is Weight.FATAL for f in ours)
    return [f for f in events if not (loses and f.cause == "link-down" and f.node in silent)]
