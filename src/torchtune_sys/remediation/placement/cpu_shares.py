"""Which node each local rank gets CPUs of, and how the ranks of one node part them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.placement import PlacementFacts
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.remediation.placement.gpus import Visible, on_bus
from torchtune_sys.remediation.placement.usable_cpus import WHOLE, NodeCpus, by_distance, node_of, nodes_of


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """What the placements of all ranks are made of."""

    s: Snapshot
    facts: PlacementFacts
    ranks: int
    seen: Visible
    apart: bool
    """Whether each rank's own process sees GPUs that no other rank sees."""
    usable: dict[int, NodeCpus]
    homes: tuple[int, ...]
    """By rank: the node whose CPUs it gets."""


def homes_of(nodes: Sequence[int | None], places: tuple[NodeCpus, ...], usable: dict[int, NodeCpus]) -> tuple[int, ...]:
    """Return the node whose CPUs each rank gets: its GPU's, or the nearest that this session may use; without a GPU, by turns."""
    order = {WHOLE: (WHOLE,)} | {place.id: place.nodes_by_distance for place in places}
    spread = _spread(len(nodes), usable)
    return tuple(
        spread[rank] if node is None or node not in order else next(other for other in order[node] if other in usable)
        for rank, node in enumerate(nodes)
    )


def _spread(ranks: int, usable: dict[int, NodeCpus]) -> tuple[int, ...]:
    """Neighbouring ranks on one node, the nodes filled in the measure of their cores."""
    ids = sorted(usable)
    total = sum(len(usable[node].cores) for node in ids)
    ends, seen = [], 0
    for node in ids:
        seen += len(usable[node].cores)
        ends.append(seen)
    return tuple(
        next(node for node, end in zip(ids, ends, strict=True) if (2 * rank + 1) * total < 2 * end * ranks)
        for rank in range(ranks)
    )


def parts_of(basis: Basis, rank: int, gpu: str) -> tuple[int, tuple[int, ...]]:
    """Return into how many parts the rank's node is divided, and which of them are its own.

    Where every rank sees its own GPUs alone, nobody knows on which nodes the others are: the node is then divided among all GPUs there.
    """
    home = basis.homes[rank]
    if basis.apart:
        near = [address for address in on_bus(basis.s) if _nearest(basis, address) == home]
        mine = tuple(near.index(address) for address in basis.seen.addresses if address in near)
        if gpu in near:
            return len(near), mine
    sharing = [other for other, node in enumerate(basis.homes) if node == home]
    return len(sharing), (sharing.index(rank),)


def _nearest(basis: Basis, address: str) -> int | None:
    """Return the node whose CPUs a rank with this GPU gets."""
    node, nodes = node_of(basis.s, address), nodes_of(basis.s)
    order = next((by_distance(found, nodes) for found in nodes if found.id == node), (node,))
    return next((other for other in order if other in basis.usable), None)


def share(cores: tuple[CpuSet, ...], parts: int, part: int) -> CpuSet:
    """Return one part of the cores: whole cores while there is one for each; then hardware threads, over the cores first; then the same CPUs for all.

    >>> cores = (CpuSet((0, 4)), CpuSet((1, 5)), CpuSet((2, 6)), CpuSet((3, 7)))
    >>> [str(share(cores, 6, part)) for part in range(6)]
    ['0', '1', '2', '3', '4', '5']
    """
    if len(cores) >= parts:
        each = len(cores) // parts
        return CpuSet(cpu for core in cores[part * each : (part + 1) * each] for cpu in core)
    # A second part begins on a core only when every core has one; unequal cores (a cpuset, mixed kinds) take what they have room for.
    places = [core for turn in range(max(map(len, cores), default=0)) for core in cores if len(core) > turn][:parts]
    if len(places) < parts:
        return CpuSet(cpu for core in cores for cpu in core)
    each = min(len(core) // places.count(core) for core in places)
    turn = places[:part].count(places[part])
    return CpuSet([*places[part]][turn * each : (turn + 1) * each])
