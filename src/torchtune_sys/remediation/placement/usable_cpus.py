"""The CPUs that this session may use, as physical cores by NUMA node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.numa import NumaNode
from torchtune_sys.model.placement import PlacementFacts
from torchtune_sys.model.snapshot import Snapshot, pci_devices_told
from torchtune_sys.model.values import Missing, Unknown, Why, absent_or_unrecorded, known, need


class NodeCpus(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node as far as this session may use its CPUs."""

    id: int
    cores: tuple[CpuSet, ...]
    nodes_by_distance: tuple[int, ...]
    """Itself first."""


def places_here(s: Snapshot, facts: PlacementFacts, one_thread: bool) -> tuple[NodeCpus, ...]:
    """Return the nodes with the CPUs of this session. Raises Unknown where no CPU is left."""
    allowed = _allowed(s, facts)
    every: Iterable[CpuSet] = (CpuSet((cpu,)) for cpu in allowed) if isinstance(facts.cores, Missing) else facts.cores
    cores = sorted((CpuSet(core & allowed) for core in every if core & allowed), key=min)
    if not cores:
        raise Unknown(Missing(Why.FAILED, "sched_getaffinity", "this session may use no CPU that is online"))
    if one_thread:
        cores = [CpuSet((min(core),)) for core in cores]
    nodes = nodes_of(s)
    places = tuple(
        NodeCpus(
            id=node.id,
            cores=tuple(core for core in cores if min(core) in need(node.cpus)),
            nodes_by_distance=by_distance(node, nodes),
        )
        for node in nodes
    )
    if any(place.cores for place in places):
        return places
    return (NodeCpus(id=0, cores=tuple(cores), nodes_by_distance=(0,)),)


def _allowed(s: Snapshot, facts: PlacementFacts) -> CpuSet:
    """Bounds that would leave nothing are not believed: the kernel has let this process run somewhere."""
    cpu = need(s.cpu)
    allowed = need(cpu.online if absent_or_unrecorded(cpu.affinity) else cpu.affinity)
    for bound in (cpu.online, cpu.cpuset):
        if not isinstance(bound, Missing) and allowed & bound:
            allowed = CpuSet(allowed & bound)
    return CpuSet(allowed - facts.isolated) or allowed


def nodes_of(s: Snapshot) -> tuple[NumaNode, ...]:
    found = () if isinstance(s.numa, Missing) else known(s.numa.nodes, ())
    return found if all(not isinstance(node.cpus, Missing) for node in found) else ()


def by_distance(node: NumaNode, nodes: Sequence[NumaNode]) -> tuple[int, ...]:
    far = dict(zip((other.id for other in nodes), known(node.distances, ()), strict=False))
    return tuple(sorted((other.id for other in nodes), key=lambda other: (other != node.id, far.get(other, 255), other)))


WHOLE = -1
"""In the place of a node: all that this session may use."""


def whole(places: tuple[NodeCpus, ...]) -> NodeCpus:
    """Return all CPUs as one node, for fewer ranks than nodes, none of them near anything: no node is left idle, and no memory is bound."""
    return NodeCpus(id=WHOLE, cores=tuple(core for place in places for core in place.cores), nodes_by_distance=())


def node_of(s: Snapshot, address: str) -> int | None:
    devices = pci_devices_told(s)
    node = next((known(device.numa_node, -1) for device in devices if device.address == address), -1)
    return node if node >= 0 else None
