"""Seats for the local ranks: CPUs and memory near each rank's GPU, disjoint, within what this session may use.

A rank gets whole physical cores, all their hardware threads included, since its DataLoader workers run there too. Ranks whose GPUs
share a NUMA node get equal shares of it, cores in ascending order; what does not divide is left to the operating system.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.numa import NumaNode
from torchtune_sys.model.pci_paths import CLASSES
from torchtune_sys.model.placement import Room, Seat, Seating
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Unknown, Why, known, need
from torchtune_sys.planner.visible import Visible, visible


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node as far as this session may use its CPUs."""

    id: int
    cores: tuple[CpuSet, ...]
    nodes_by_distance: tuple[int, ...]
    """Itself first."""


def seating(s: Snapshot, room: Room, ranks: int, *, one_thread_per_core: bool = False) -> Seating:
    """A seat for each local rank. Raises Unknown where the CPUs of this session could not be read."""
    places = _places(s, room, one_thread_per_core)
    usable = {place.id: place for place in places if place.cores}
    if not usable:
        raise Unknown(Missing(Why.FAILED, "sched_getaffinity", "this session may use no CPU that is online"))
    seen = visible(s)
    gpus = tuple(seen.addresses[rank % len(seen.addresses)] if seen.addresses else "" for rank in range(ranks))
    homes = _homes(s, gpus, places, usable)
    seats = [_seat(s, room, rank, gpus[rank], homes, usable, seen) for rank in range(ranks)]
    return Seating(seats=tuple(seats), notes=tuple(_notes(s, room, ranks, seen, homes, usable, seats)))


def _places(s: Snapshot, room: Room, one_thread: bool) -> tuple[_Place, ...]:
    allowed = _allowed(s)
    cores = [CpuSet(core & allowed) for core in need(room.cores) if core & allowed]
    if one_thread:
        cores = [CpuSet((min(core),)) for core in cores]
    nodes = _nodes(s)
    if not nodes:
        return (_Place(id=0, cores=tuple(sorted(cores, key=min)), nodes_by_distance=(0,)),)
    return tuple(
        _Place(
            id=node.id,
            cores=tuple(sorted((core for core in cores if min(core) in need(node.cpus)), key=min)),
            nodes_by_distance=_by_distance(node, nodes),
        )
        for node in nodes
    )


def _allowed(s: Snapshot) -> CpuSet:
    cpu = need(s.cpu)
    allowed = set(need(cpu.affinity)) & set(need(cpu.online))
    return CpuSet(allowed if isinstance(cpu.cpuset, Missing) else allowed & set(cpu.cpuset))


def _nodes(s: Snapshot) -> tuple[NumaNode, ...]:
    found = () if isinstance(s.numa, Missing) else known(s.numa.nodes, ())
    return found if all(not isinstance(node.cpus, Missing) for node in found) else ()


def _by_distance(node: NumaNode, nodes: Sequence[NumaNode]) -> tuple[int, ...]:
    far = dict(zip((other.id for other in nodes), known(node.distances, ()), strict=False))
    return tuple(sorted((other.id for other in nodes), key=lambda other: (other != node.id, far.get(other, 255), other)))


def _homes(s: Snapshot, gpus: Sequence[str], places: tuple[_Place, ...], usable: dict[int, _Place]) -> tuple[int, ...]:
    """The node whose CPUs each rank gets: its GPU's, or the nearest that this session may use; without a GPU, by turns."""
    told = [_node_of(s, gpu) for gpu in gpus]
    order = {place.id: place.nodes_by_distance for place in places}
    spread = _spread(len(gpus), usable)
    return tuple(
        spread[rank] if node is None or node not in order else next(other for other in order[node] if other in usable)
        for rank, node in enumerate(told)
    )


def _node_of(s: Snapshot, address: str) -> int | None:
    devices = () if isinstance(s.pci, Missing) else known(s.pci.devices, ())
    node = next((known(device.numa_node, -1) for device in devices if device.address == address), -1)
    return node if node >= 0 else None


def _spread(ranks: int, usable: dict[int, _Place]) -> tuple[int, ...]:
    """Neighbouring ranks on one node, the nodes filled in the measure of their cores."""
    ids = sorted(usable)
    total = sum(len(usable[node].cores) for node in ids)
    ends, seen = [], 0
    for node in ids:
        seen += len(usable[node].cores)
        ends.append(seen)
    return tuple(
        next(node for node, end in zip(ids, ends, strict=True) if (rank + 0.5) * total < end * ranks) for rank in range(ranks)
    )


def _seat(s: Snapshot, room: Room, rank: int, gpu: str, homes: tuple[int, ...], usable: dict[int, _Place], seen: Visible) -> Seat:
    home = homes[rank]
    sharing = [other for other, node in enumerate(homes) if node == home]
    node = _node_of(s, gpu) if gpu else None
    memory, memory_node = _memory(s, room, home)
    notes = (
        ()
        if node is None or node == home
        else (f"no CPU of node {node}, where its GPU is, may be used here: node {home} is the nearest",)
    )
    return Seat(
        rank=rank,
        gpu=gpu,
        gpu_index=rank % len(seen.addresses) if seen.addresses else None,
        node=home if node is None and not gpu else node,
        cpus=_share(usable[home].cores, len(sharing), sharing.index(rank)),
        memory=memory,
        memory_node=memory_node,
        nic=_nic(s, gpu),
        notes=notes,
    )


def _share(cores: tuple[CpuSet, ...], ranks: int, place: int) -> CpuSet:
    """Whole cores while there is one for each; then hardware threads; then the same CPUs for all."""
    if len(cores) >= ranks:
        each = len(cores) // ranks
        return CpuSet(cpu for core in cores[place * each : (place + 1) * each] for cpu in core)
    threads = sorted(cpu for core in cores for cpu in core)
    if len(threads) >= ranks:
        each = len(threads) // ranks
        return CpuSet(threads[place * each : (place + 1) * each])
    return CpuSet(threads)


def _memory(s: Snapshot, room: Room, home: int) -> tuple[str, int | None]:
    """Bound where that costs nothing but distance; preferred where memory of other kinds or sizes lies elsewhere."""
    nodes = _nodes(s)
    own = next((node for node in nodes if node.id == home), None)
    if len(nodes) < 2 or own is None or known(room.may_bind_memory, False) is False:
        return "", None
    allowed = None if isinstance(s.numa, Missing) else known(s.numa.allowed_mems, CpuSet())
    sizes = [known(node.memory_bytes, 0) for node in nodes if known(node.cpus, CpuSet())]
    if not known(own.memory_bytes, 0) or (allowed and home not in allowed):
        return "", None
    apart = any(not known(node.cpus, CpuSet()) and known(node.memory_bytes, 0) for node in nodes)
    even = known(own.memory_bytes, 0) * 2 >= max(sizes)
    return ("bind" if even and not apart else "prefer"), home


def _nic(s: Snapshot, gpu: str) -> str:
    found = () if isinstance(s.pci, Missing) or not gpu else known(s.pci.distances, ())
    near = [item for item in found if item.gpu == gpu and item.rdma]
    return min(near, key=lambda item: (CLASSES.index(item.path), item.rdma)).rdma if near else ""


def _notes(
    s: Snapshot, room: Room, ranks: int, seen: Visible, homes: tuple[int, ...], usable: dict[int, _Place], seats: list[Seat]
) -> list[str]:
    notes = [seen.note] if seen.note else []
    if seen.addresses and ranks > len(seen.addresses):
        notes.append(f"{ranks} ranks share {len(seen.addresses)} GPUs")
    lost = sorted({seat.gpu for seat in seats if seat.gpu and _node_of(s, seat.gpu) is None})
    if lost and len(_nodes(s)) > 1:
        notes.append(f"the kernel does not say which NUMA node {', '.join(lost)} belongs to: CPUs are shared out by turns")
    for node, place in usable.items():
        sharing = homes.count(node)
        if sharing > sum(len(core) for core in place.cores):
            notes.append(f"node {node}: {sharing} ranks share the same {sum(len(core) for core in place.cores)} CPUs")
        elif sharing > len(place.cores):
            notes.append(f"node {node}: {sharing} ranks on {len(place.cores)} cores share cores")
    if isinstance(room.may_bind_memory, bool) and not room.may_bind_memory:
        notes.append(
            "memory policy is refused here (containers need CAP_SYS_NICE, or a seccomp profile that allows set_mempolicy)"
        )
    return notes
