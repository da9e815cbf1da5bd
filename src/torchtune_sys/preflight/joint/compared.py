"""The facts of all nodes, compared by the engine of ``compare``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from torchtune_sys.fleet.comparing import Comparing
from torchtune_sys.fleet.facts_file import MISSING
from torchtune_sys.fleet.kinds import kinds
from torchtune_sys.fleet.store import Store
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.model.comparison import Comparison, DifferenceWeight
from torchtune_sys.preflight.joint.gathered import Differing, Node, NodeFacts
from torchtune_sys.rules import CATALOGUE

_SHOWN = 120
_encode = msgspec.json.Encoder(order="deterministic").encode


def compared(members: Mapping[int, Node]) -> tuple[Differing, ...]:
    """Return every fact in which nodes differ, the heaviest first."""
    told = {node: facts for node, member in members.items() if (facts := member.facts) is not None}
    hosts, job = Store(), Store()
    for node, facts in told.items():
        _add(hosts, node, facts.families)
        _add(job, node, {"job": _of_job(members[node], facts)})
    found = [*_differing(job), *_kinds(hosts), *_differing(hosts)]
    return tuple(sorted(found, key=lambda one: one.weight.rank))


def _add(store: Store, node: int, families: Mapping[str, Any]) -> None:
    """Add what is compared: what is not as a facts file has it is left out."""
    try:
        store.add(str(node), "", {family: _encode(facts) for family, facts in families.items()})
    except (ValueError, TypeError, RecursionError):
        return


def _of_job(member: Node, facts: NodeFacts) -> dict[str, Any]:
    """Return what is known of a node from elsewhere than its snapshot: its ranks' torch, the MTU of the interface that it came over."""
    worker = member.worker
    mtu = [
        entry.mtu
        for entry in facts.interfaces.values()
        if entry.mtu is not None and any(address == member.address for address, _length in entry.addresses)
    ]
    told = {"torch": worker.torch, "cuda": worker.cuda, "python": worker.python} if worker.torch else {}
    return {**told, **({"mtu": mtu[0]} if mtu else {})}


def _kinds(store: Store) -> Iterable[Differing]:
    """Hosts of different kinds are compared among their own: that they are of different kinds is a difference, too."""
    found = kinds(store)
    if len(found) < 2:
        return
    usual, most = next(iter(found.items()))
    is_usual = 2 * len(most) > len(store.hosts)
    odd = {int(store.hosts[host].name): kind for kind, hosts in found.items() if not is_usual or kind != usual for host in hosts}
    yield Differing(
        fact="kind", values=odd, usual=usual if is_usual else None, hosts=len(store.hosts), weight=DifferenceWeight.ERROR
    )


def _differing(store: Store) -> Iterable[Differing]:
    if len(store.hosts) < 2:
        return
    found = Comparing(store, _readers()).among_themselves()
    yield from _odd(found, [int(host.name) for host in store.hosts])
    yield from _groups(found)


def _odd(found: Comparison, nodes: Iterable[int]) -> Iterable[Differing]:
    by_fact: dict[str, dict[int, Any]] = {}
    about = {one.fact: one for one in found.odd}
    for one in found.odd:
        if not _is_unseen(one.value):
            by_fact.setdefault(one.fact, {})[int(one.host)] = one.value
    most = max((kind.hosts for kind in found.kinds), default=0)
    for fact, values in by_fact.items():
        usual = about[fact].usual
        is_usual = 2 * (most - len(values)) > most
        shown = {node: _shown(values.get(node, usual)) for node in nodes if node in values or not is_usual}
        yield Differing(fact=fact, values=shown, usual=_shown(usual) if is_usual else None, hosts=most, weight=about[fact].weight)


def _groups(found: Comparison) -> Iterable[Differing]:
    """Of hosts that fall into groups the smaller ones are odd, where one has more than half."""
    by_fact: dict[tuple[int, str], list[tuple[tuple[str, ...], Any, DifferenceWeight]]] = {}
    for group in found.groups:
        for fact in group.facts:
            by_fact.setdefault((group.division, fact.fact), []).append((group.hosts, fact.value, fact.weight))
    for (_division, name), groups in by_fact.items():
        total = sum(len(hosts) for hosts, _value, _weight in groups)
        largest, usual, weight = max(groups, key=lambda group: len(group[0]))
        is_usual = 2 * len(largest) > total
        odd = {
            int(host): _shown(value) for hosts, value, _weight in groups if not is_usual or hosts is not largest for host in hosts
        }
        yield Differing(fact=name, values=odd, usual=_shown(usual) if is_usual else None, hosts=total, weight=weight)


def _is_unseen(value: Any) -> bool:
    return isinstance(value, dict) and MISSING in value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else "nothing" if value is None else _encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


@lru_cache(1)
def _readers() -> Readers:
    return Readers(CATALOGUE)
