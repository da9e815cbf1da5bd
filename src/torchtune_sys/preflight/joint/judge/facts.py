"""Judge each node's facts alone, and the differences between nodes."""

from __future__ import annotations

import errno
import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import median, median_low

from torchtune_sys.fleet.difference_causes import cause_of, must_be_alike
from torchtune_sys.knowledge.nccl import parse_names
from torchtune_sys.model.comparison import DifferenceWeight
from torchtune_sys.model.numbers import counted
from torchtune_sys.model.preflight import Weight
from torchtune_sys.preflight.joint.gathered import Differing, Gathered, Node, NodeFacts, PeerInterface, own_name, taken
from torchtune_sys.preflight.joint.judge.finding import JointFinding

CLOCK_S = 1.0
"""Farther apart than this, logs, leases and certificates go wrong; two synchronised hosts are within milliseconds."""
_CHOICES = ("session.env[NCCL_SOCKET_IFNAME]", "session.env[GLOO_SOCKET_IFNAME]", "cpu.quota")
"""Judged by themselves."""
_HEAVY = (DifferenceWeight.ERROR, DifferenceWeight.WARNING)
SILENT = ("time-out", "unreachable")
"""How a call ends to a host that gives no answer."""
_FACTS_AT_MOST = 6
_NODES_AT_MOST = 8
_BRIDGES = ("bridge", "loopback", "veth", "dummy")


def findings(gathered: Gathered) -> list[JointFinding]:
    """Return the findings, each node by itself first, then what differs."""
    told = {node: member.facts for node, member in gathered.members.items()}
    nodes = {node: facts for node, facts in told.items() if facts is not None}
    found: list[JointFinding] = []
    for node, facts in nodes.items():
        if gathered.nodes > 1:
            found += _alone(node, gathered.members[node], facts)
    found += _duplicates(gathered, nodes) or [*_clones(gathered)]
    found += _same_names(gathered)
    found += _clocks(gathered)
    found += _differing(gathered)
    found += _without_torch(gathered)
    found += _unreached_names(gathered)
    found += _masters(gathered)
    found += _silent_masters(gathered)
    found += _quotas(gathered, nodes)
    found += _unable(gathered)
    found += _losing_carrier(gathered)
    return found


def _alone(node: int, member: Node, facts: NodeFacts) -> Iterator[JointFinding]:
    """Yield what a node's own facts show: the interfaces that gloo and NCCL are told to take, and the address that gloo announces."""
    gloo, nccl = facts.env.get("GLOO_SOCKET_IFNAME", ""), facts.env.get("NCCL_SOCKET_IFNAME", "")
    told = [
        words for name in filter(None, gloo.split(",")) if (words := _unfit(facts.interfaces.get(name), member.address, name))
    ]
    if told:
        yield _wrong_interface(node, f"GLOO_SOCKET_IFNAME={gloo}: {told[0]}")
    if nccl and facts.interfaces and (there := _unfit_for_nccl(nccl, facts.interfaces, member.address)):
        yield _wrong_interface(node, f"NCCL_SOCKET_IFNAME={nccl}: {there}")
    if not gloo and facts.own_name_addresses is not None:
        yield from _own_name(node, facts.own_name_addresses, facts.interfaces)


def _wrong_interface(node: int, seen: str) -> JointFinding:
    return JointFinding(part="facts", cause="nccl-wrong-interface", node=node, seen=seen)


def _unfit_for_nccl(setting: str, interfaces: Mapping[str, PeerInterface], data_address: str) -> str:
    """Return what speaks against all interfaces that NCCL may take; "" where one will do."""
    names = parse_names(setting)
    chosen = [name for name in interfaces if names.chosen(name) and interfaces[name].addresses]
    if not chosen:
        return "matches no interface"
    told = [_unfit(interfaces[name], data_address, name) for name in chosen]
    return ", ".join(told) if all(told) and not names.exclude else ""


def _own_name(node: int, own: Sequence[str], interfaces: Mapping[str, PeerInterface]) -> Iterator[JointFinding]:
    held = {address for entry in interfaces.values() for address, _length in entry.addresses}
    usable = [address for address in own if address in held and not _is_loopback(address)]
    if own and not usable and any(map(_is_loopback, own)):
        seen = f"its host name resolves to {', '.join(own)}, which gloo announces to the other nodes"
        yield JointFinding(part="facts", cause="hostname-resolves-to-loopback", node=node, seen=seen)
    elif not usable:
        seen = f"its host name resolves to {', '.join(own)}, which is not one of its addresses"
        seen = seen if own else "its host name does not resolve"
        yield JointFinding(part="facts", cause="hostname-unresolvable", node=node, seen=seen)


def _unfit(interface: PeerInterface | None, data_address: str, name: str) -> str:
    """Return what speaks against an interface for what goes to other nodes; "" where nothing does."""
    if interface is None:
        return f"{name} does not exist"
    if not interface.addresses:
        return f"{name} has no address"
    if any(address == data_address for address, _length in interface.addresses):
        return ""
    return f"{name} is a {interface.kind} and leads to no other node" if interface.kind in _BRIDGES else ""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _duplicates(gathered: Gathered, nodes: Mapping[int, NodeFacts]) -> list[JointFinding]:
    """Addresses of the data network that two nodes hold, or one node that another one's name stands for. Of one that has addresses of several others, which
    share none among them, it alone is told."""
    holders: dict[str, dict[int, None]] = {}
    for node, member in gathered.members.items():
        for address in _data_network(member, nodes.get(node, NodeFacts())):
            holders.setdefault(address, {})[node] = None
    elsewhere = gathered.listed_elsewhere() if gathered.resolved else frozenset()
    for node, addresses in gathered.resolved.items():
        for address in () if node in elsewhere else addresses:
            if address in holders:
                holders[address][node] = None
    found = []
    shared = {address: those for address, those in holders.items() if len(those) > 1}
    beside: dict[int, set[int]] = {}
    for those in shared.values():
        for node in those:
            beside.setdefault(node, set()).update({*those} - {node})
    taking = {node for node, others in beside.items() if len(others) > 1 and all(beside[other] == {node} for other in others)}
    for address, those in shared.items():
        names = " and ".join(gathered.name(node) for node in islice(those, _NODES_AT_MOST))
        more = f" and {len(those) - _NODES_AT_MOST} more" if len(those) > _NODES_AT_MOST else ""
        seen = f"{address} is assigned to {names}{more}"
        accused = taking & {*those} or those
        found += [JointFinding(part="facts", cause="duplicate-address", node=node, seen=seen) for node in accused]
    return found


def _clones(gathered: Gathered) -> Iterator[JointFinding]:
    """Yield nodes that gave no answer and for whose address the network card of one that came answers, with that one: a switch sends to the machine or to its clone. A router that
    answers for all (proxy ARP, as in Azure's networks) has a hardware address that is no node's; of containers that share one by design (ipvlan) the kernel refuses for who is not there."""
    owners = {each: node for node, member in gathered.members.items() for each in member.hardware_addresses}
    elsewhere = gathered.listed_elsewhere() if gathered.resolved else frozenset()
    for node, addresses in gathered.resolved.items():
        for address in addresses if node not in elsewhere and gathered.missing.get(node) in SILENT else ():
            hardware = gathered.neighbours.get(address, "")
            owner = owners.get(hardware)
            if owner is not None and gathered.members[owner].address != address:
                seen = f"{gathered.name(owner)} and {gathered.name(node)} ({address}) have the same hardware address {hardware}"
                for each in (owner, node):
                    yield JointFinding(part="facts", cause="duplicate-address", node=each, seen=seen[:300])
                break


def _same_names(gathered: Gathered) -> Iterator[JointFinding]:
    """Yield nodes of one name, which no list and no scheduler can tell apart."""
    by_name: dict[str, list[int]] = {}
    for node, member in gathered.members.items():
        by_name.setdefault(own_name(member), []).append(node)
    for name, those in by_name.items():
        for node in those if name and len(those) > 1 else ():
            others = ", ".join(gathered.members[other].address or "?" for other in islice(those, _NODES_AT_MOST) if other != node)
            seen = f"at {gathered.members[node].address} it is called {name}, as is the node at {others} (TORCHTUNE_SYS_NODE, or the host's name): a list holds neither by that name"
            yield JointFinding(part="facts", cause="job-launch-nested-wrongly", node=node, seen=seen[:300], weight=Weight.WARNING)


def _data_network(member: Node, facts: NodeFacts) -> list[str]:
    """Return the node's addresses in the network of its data address."""
    held = [place for entry in facts.interfaces.values() for place in entry.addresses]
    try:
        network = next(
            ipaddress.ip_network(f"{address}/{length}", strict=False) for address, length in held if address == member.address
        )
        return [address for address, _length in held if ipaddress.ip_address(address) in network]
    except (StopIteration, ValueError, TypeError):
        return [member.address] if member.address and not _is_loopback(member.address) else []


def _clocks(gathered: Gathered) -> list[JointFinding]:
    offsets = {node: member.clock_offset_s for node, member in gathered.members.items() if member.clock_offset_s is not None}
    if len(offsets) < 2:
        return []
    middle = median_low(offsets.values())
    odd = {
        node: offset - middle
        for node, offset in offsets.items()
        if abs(offset - middle) > CLOCK_S + gathered.members[node].clock_error_s
    }
    if odd and 2 * len(odd) >= len(offsets):  # then nobody says whose is right
        told = ", ".join(f"{gathered.name(node)} {offset:+.1f} s" for node, offset in islice(odd.items(), _NODES_AT_MOST))
        more = f" and {len(odd) - _NODES_AT_MOST} more" if len(odd) > _NODES_AT_MOST else ""
        seen = f"the clocks of {len(odd)} of {len(offsets)} nodes differ from the rest, and there is no majority: {told}{more}"
        return [JointFinding(part="facts", cause="clock-skew", seen=seen)]
    return [
        JointFinding(part="facts", cause="clock-skew", node=node, seen=f"its clock differs from the others by {offset:+.1f} s")
        for node, offset in odd.items()
    ]


def _differing(gathered: Gathered) -> Iterator[JointFinding]:
    """Yield what the engine of ``compare`` found, one finding for each node, cause and weight. Without a majority nobody is to blame."""
    seen: dict[tuple[int, str, Weight], list[str]] = {}
    for one in gathered.differing or ():
        told = _weighed(one)
        if told is None:
            continue
        for node, value in one.values.items():
            others = f"{one.hosts - len(one.values)} others have {one.usual}" if one.usual is not None else "there is no majority"
            seen.setdefault((node, *told), []).append(f"{one.fact} is {value} ({others})")
    for (node, cause, weight), facts in seen.items():
        more = f"; {counted(len(facts) - _FACTS_AT_MOST, 'more fact')}" if len(facts) > _FACTS_AT_MOST else ""
        yield JointFinding(part="facts", cause=cause, node=node, seen="; ".join(facts[:_FACTS_AT_MOST]) + more, weight=weight)


def _weighed(one: Differing) -> tuple[str, Weight] | None:
    """Cause and weight of a difference; None where it breaks nothing."""
    if one.fact.startswith(_CHOICES):
        return None
    cause = cause_of(one.fact)
    if cause is None:
        return None
    if must_be_alike(one.fact):
        return cause, Weight.FATAL if one.usual is not None else Weight.WARNING
    return (cause, Weight.WARNING) if one.weight in _HEAVY or one.fact.startswith("job.") else None


def _without_torch(gathered: Gathered) -> Iterator[JointFinding]:
    """Ranks whose torch does not import. Where nobody has any, nothing can be said of the nodes."""
    somebody = any(member.worker.torch for member in gathered.members.values())
    for node, member in gathered.members.items():
        failed = [note for note in member.workers if note.error and not note.torch]
        errors = [note.error for note in failed]
        if errors and somebody:
            seen = f"torch does not start here; it does on other nodes: {errors[0][:200]}"
            yield JointFinding(
                part="facts", cause=cause_of_end(failed[0].signal), node=node, seen=seen + hint_of_end(failed[0].signal)
            )
        elif errors:
            yield JointFinding(part="facts", cause="checker-fault", node=node, seen=errors[0][:200], weight=Weight.UNKNOWN)


_BY_OTHERS = ("SIGKILL", "SIGTERM", "SIGXCPU", "SIGHUP", "SIGINT")
"""Signals that come from elsewhere: the kernel where memory or time runs out, a scheduler, a person."""


def cause_of_end(by: str) -> str:
    """Return the cause where a process that trains ends on one node alone, by this signal, or by an error where it is "".

    >>> cause_of_end("SIGKILL"), cause_of_end("SIGILL"), cause_of_end("")
    ('rank-killed', 'software-differs-between-nodes', 'software-differs-between-nodes')
    """
    return "rank-killed" if by in _BY_OTHERS else "software-differs-between-nodes"


def hint_of_end(by: str) -> str:
    """Return what such an end mostly comes from."""
    return {
        "SIGKILL": "; the kernel does so when memory runs out: see dmesg and the cgroup's memory.events",
        "SIGXCPU": "; the limit on CPU time (ulimit -t)",
        "SIGILL": "; an instruction that this CPU lacks, or a damaged file",
    }.get(by, "")


def named_elsewhere(node: Node) -> str:
    """Return the address that gloo tells the other nodes of this one, where it is not the one by which they reach it."""
    facts = node.facts
    if facts is None or facts.env.get("GLOO_SOCKET_IFNAME") or not node.address:
        return ""
    held = {address for entry in facts.interfaces.values() for address, _length in entry.addresses}
    own = [address for address in facts.own_name_addresses or () if address in held and not _is_loopback(address)]
    return own[0] if own and node.address not in own else ""


def _unreached_names(gathered: Gathered) -> Iterator[JointFinding]:
    """Nodes whose own name stands for an address that others do not reach."""
    for node, words in gathered.unreached_names.items():
        seen = f"its host name resolves to {words}, where other nodes cannot reach it; gloo announces that address"
        yield JointFinding(part="facts", cause="nccl-wrong-interface", node=node, seen=seen)


def _masters_told(gathered: Gathered) -> dict[int, tuple[str, ...]]:
    """Return what MASTER_ADDR stands for at each node but the first."""
    return {
        node: found
        for node, member in gathered.members.items()
        if node and (found := taken(member.notes.get("master"), tuple[str, ...])) is not None
    }


def usual_master(gathered: Gathered) -> set[str]:
    """Return the addresses that MASTER_ADDR stands for at more than half of the nodes that came."""
    told = _masters_told(gathered)
    counts = Counter(address for found in told.values() for address in {*found})
    return {address for address, count in counts.items() if 2 * count > len(told)}


def _masters(gathered: Gathered) -> Iterator[JointFinding]:
    """Nodes that did not reach the first node, and for which MASTER_ADDR stands for another address than for the others."""
    usual = usual_master(gathered)
    for node, found in _masters_told(gathered).items():
        word = gathered.members[node].words.get(0, "ok")
        if usual and not usual & {*found} and word != "ok":
            seen = f"MASTER_ADDR resolves to {', '.join(found) or 'no address'} there, and to {', '.join(sorted(usual))} on the others ({word})"
            yield JointFinding(part="facts", cause="master-addr-wrong", node=node, seen=seen)


def _unable(gathered: Gathered) -> Iterator[JointFinding]:
    """Yield the nodes whose own kernel refused what the test of their connections needs: training opens more of them."""
    for node, member in gathered.members.items():
        told = member.unable
        if told is not None:
            is_full = told.errno == errno.EMFILE
            seen = f"this node could not do what it was asked: {told.words}"
            cause, weight = ("nofile-limit-too-low", Weight.FATAL) if is_full else ("checker-fault", Weight.UNKNOWN)
            yield JointFinding(part="facts", cause=cause, node=node, seen=seen, weight=weight)


def _losing_carrier(gathered: Gathered) -> Iterator[JointFinding]:
    """Yield the nodes whose interface of the data network lost its carrier: a bad cable, plug or port does so again and again."""
    for node, member in gathered.members.items():
        interfaces = member.facts.interfaces if member.facts is not None else {}
        own = [name for name, each in interfaces.items() if any(address == member.address for address, _length in each.addresses)]
        for name in own:
            times = member.carrier_losses.get(name, 0)
            if times:
                seen = f"{name} lost its carrier {f'{times} times' if times > 1 else 'once'} during the pre-flight"
                weight = Weight.FATAL if times > 1 else Weight.WARNING
                yield JointFinding(part="facts", cause="link-down", node=node, seen=seen, weight=weight)


def _silent_masters(gathered: Gathered) -> Iterator[JointFinding]:
    """Yield who gets no answer from the address that MASTER_ADDR stands for first: the first node, where more than half of the others do not; of two nodes the way between them."""
    told = {
        node: found for node, member in gathered.members.items() if node and (found := taken(member.notes.get("silent"), str))
    }
    others = len(gathered.members) - 1
    for node in ([0] if 2 * len(told) > others else [*told]) if told and 0 in gathered.members else ():
        address = told.get(node) or next(iter(told.values()))
        seen = f"MASTER_ADDR resolves to {address} first, which gives no answer; torch tries a name's addresses in turn, and waits for this one"
        if others == 1:
            yield JointFinding(part="facts", cause="port-dropped", link=(next(iter(told)), 0), seen=seen[:300])
        else:
            yield JointFinding(part="facts", cause="port-dropped", node=node, seen=seen[:300])


def _quotas(gathered: Gathered, nodes: Mapping[int, NodeFacts]) -> list[JointFinding]:
    """Return the findings on a quota of CPU time that most others do not have, or have twice as much of."""
    values = {node: facts.cpu_quota or float("inf") for node, facts in nodes.items()}
    if len(values) < 3:
        return []
    usual = median(values.values())
    return [
        JointFinding(
            part="facts", cause="cpu-quota-on-one-node", node=node, seen=f"a cgroup allows {value:g} CPUs; others have {usual:g}"
        )
        for node, value in values.items()
        if value < float("inf") and value * 2 <= usual
    ]
