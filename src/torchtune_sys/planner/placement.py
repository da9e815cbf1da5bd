"""Seats for the local ranks: CPUs and memory near each rank's GPU, disjoint, within what this session may use.

A rank gets whole physical cores, all their hardware threads included, since its DataLoader workers run there too. Ranks whose GPUs
share a NUMA node get equal shares of it, cores in ascending order; what does not divide is left to the operating system.
Every rank's own process comes to the same answer, since nothing that moves (free memory, load) is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.numa import NumaNode
from torchtune_sys.model.facts.pci import PciDistance
from torchtune_sys.model.local_ranks import slurm_gives_gpus_to_each
from torchtune_sys.model.pci_paths import CLASSES
from torchtune_sys.model.placement import Room, Seat, Seating
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Unknown, Why, known, need
from torchtune_sys.planner.visible import Visible, on_bus, visible


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node as far as this session may use its CPUs."""

    id: int
    cores: tuple[CpuSet, ...]
    nodes_by_distance: tuple[int, ...]
    """Itself first."""


class _Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What all seats are made of."""

    s: Snapshot
    room: Room
    ranks: int
    seen: Visible
    apart: bool
    """Whether each rank's own process sees GPUs that no other rank sees."""
    usable: dict[int, _Place]
    homes: tuple[int, ...]
    """By rank: the node whose CPUs it gets."""


def seating(s: Snapshot, room: Room, ranks: int | None, *, one_thread_per_core: bool = False) -> Seating:
    """A seat for each local rank; ``ranks`` None is one for each GPU. Raises Unknown where the CPUs of this session could not be read."""
    seen = visible(s, room.boards)
    ranks = ranks or len(seen.addresses) or 1
    apart = ranks > len(seen.addresses) > 0 and slurm_gives_gpus_to_each(_env(s))
    places = _places(s, room, one_thread_per_core)
    usable = {place.id: place for place in places if place.cores}
    gpus = [_gpu_of(seen, rank, apart) for rank in range(ranks)]
    told = [_node_of(s, gpu) if gpu else _common_node(s, seen) for gpu in gpus]
    if ranks < len(usable) and not any(node in usable for node in told):
        usable, told = {_WHOLE: _whole(places)}, [_WHOLE] * ranks
    homes = _homes(told, places, usable)
    ground = _Ground(s=s, room=room, ranks=ranks, seen=seen, apart=apart, usable=usable, homes=homes)
    seats = tuple(_seat(ground, rank, gpus[rank]) for rank in range(ranks))
    return Seating(seats=seats, notes=tuple(_notes(ground, seats)))


def kept(s: Snapshot, room: Room, rank: int, ranks: int | None, *, one_thread_per_core: bool = False) -> Seat:
    """The seat of a rank that its starter bound already: all that it may use; memory where all these CPUs are of one node.

    Raises Unknown as ``seating``."""
    seen = visible(s, room.boards)
    ranks = max(ranks or 1, rank + 1)
    apart = ranks > len(seen.addresses) > 0 and slurm_gives_gpus_to_each(_env(s))
    usable = [place for place in _places(s, room, one_thread_per_core) if place.cores]
    gpu = _gpu_of(seen, rank, apart)
    cores = [core for place in usable for core in place.cores]
    memory, memory_node = _memory(s, room, usable[0].id) if len(usable) == 1 else ("", None)
    return Seat(
        rank=rank,
        gpu=gpu,
        gpu_index=_index_of(seen, rank, apart),
        node=_node_of(s, gpu),
        cpus=CpuSet(cpu for core in cores for cpu in core),
        threads=_threads(s, len(cores), ranks),
        memory=memory,
        memory_node=memory_node,
        nic=_nic(s, gpu),
    )


def _env(s: Snapshot) -> dict[str, str]:
    return {} if isinstance(s.session, Missing) else known(s.session.env, {})


def _index_of(seen: Visible, rank: int, apart: bool) -> int | None:
    if not seen.addresses:
        return None
    return 0 if apart else rank % len(seen.addresses)


def _gpu_of(seen: Visible, rank: int, apart: bool) -> str:
    index = _index_of(seen, rank, apart)
    return "" if index is None else seen.addresses[index]


def _places(s: Snapshot, room: Room, one_thread: bool) -> tuple[_Place, ...]:
    """Raises Unknown where no CPU is left."""
    allowed = _allowed(s, room)
    every: Iterable[CpuSet] = (CpuSet((cpu,)) for cpu in allowed) if isinstance(room.cores, Missing) else room.cores
    cores = sorted((CpuSet(core & allowed) for core in every if core & allowed), key=min)
    if not cores:
        raise Unknown(Missing(Why.FAILED, "sched_getaffinity", "this session may use no CPU that is online"))
    if one_thread:
        cores = [CpuSet((min(core),)) for core in cores]
    nodes = _nodes(s)
    places = tuple(
        _Place(
            id=node.id,
            cores=tuple(core for core in cores if min(core) in need(node.cpus)),
            nodes_by_distance=_by_distance(node, nodes),
        )
        for node in nodes
    )
    if any(place.cores for place in places):
        return places
    return (_Place(id=0, cores=tuple(cores), nodes_by_distance=(0,)),)


def _allowed(s: Snapshot, room: Room) -> CpuSet:
    """Bounds that would leave nothing are not believed: the kernel has let this process run somewhere."""
    cpu = need(s.cpu)
    allowed = need(cpu.online if _unrecorded(cpu.affinity) else cpu.affinity)
    for bound in (cpu.online, cpu.cpuset):
        if not isinstance(bound, Missing) and allowed & bound:
            allowed = CpuSet(allowed & bound)
    return CpuSet(allowed - room.isolated) or allowed


def _unrecorded(fact: Fact[CpuSet]) -> bool:
    return isinstance(fact, Missing) and fact.why in (Why.NOT_RECORDED, Why.ABSENT)


def _nodes(s: Snapshot) -> tuple[NumaNode, ...]:
    found = () if isinstance(s.numa, Missing) else known(s.numa.nodes, ())
    return found if all(not isinstance(node.cpus, Missing) for node in found) else ()


def _by_distance(node: NumaNode, nodes: Sequence[NumaNode]) -> tuple[int, ...]:
    far = dict(zip((other.id for other in nodes), known(node.distances, ()), strict=False))
    return tuple(sorted((other.id for other in nodes), key=lambda other: (other != node.id, far.get(other, 255), other)))


_WHOLE = -1
"""In the place of a node: all that this session may use."""


def _whole(places: tuple[_Place, ...]) -> _Place:
    """For fewer ranks than nodes, none of them near anything: no node is left idle, and no memory is bound."""
    return _Place(id=_WHOLE, cores=tuple(core for place in places for core in place.cores), nodes_by_distance=())


def _homes(told: Sequence[int | None], places: tuple[_Place, ...], usable: dict[int, _Place]) -> tuple[int, ...]:
    """The node whose CPUs each rank gets: its GPU's, or the nearest that this session may use; without a GPU, by turns."""
    order = {_WHOLE: (_WHOLE,)} | {place.id: place.nodes_by_distance for place in places}
    spread = _spread(len(told), usable)
    return tuple(
        spread[rank] if node is None or node not in order else next(other for other in order[node] if other in usable)
        for rank, node in enumerate(told)
    )


def _node_of(s: Snapshot, address: str) -> int | None:
    devices = () if isinstance(s.pci, Missing) else known(s.pci.devices, ())
    node = next((known(device.numa_node, -1) for device in devices if device.address == address), -1)
    return node if node >= 0 else None


def _common_node(s: Snapshot, seen: Visible) -> int | None:
    """Where it is not known which GPU a rank takes, but all lie at one node."""
    found = {_node_of(s, address) for address in seen.candidates}
    return found.pop() if len(found) == 1 else None


def _spread(ranks: int, usable: dict[int, _Place]) -> tuple[int, ...]:
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


def _seat(ground: _Ground, rank: int, gpu: str) -> Seat:
    s, home = ground.s, ground.homes[rank]
    cores = ground.usable[home].cores
    parts, mine = _parts(ground, rank, gpu)
    shares = [_share(cores, parts, part) for part in mine]
    node = _node_of(s, gpu) if gpu else None
    memory, memory_node = _memory(s, ground.room, home)
    far = node is not None and home not in (node, _WHOLE) and len(_nodes(s)) > 1
    return Seat(
        rank=rank,
        gpu=gpu,
        gpu_index=_index_of(ground.seen, rank, ground.apart),
        node=home if node is None and not gpu and home != _WHOLE else node,
        cpus=CpuSet(cpu for share in shares for cpu in share),
        threads=_threads(s, max(len(mine) * (len(cores) // parts), 1), ground.ranks),
        memory=memory,
        memory_node=memory_node,
        nic=_nic(s, gpu),
        notes=(f"no CPU of node {node}, where its GPU is, may be used here: node {home} is the nearest",) if far else (),
    )


def _parts(ground: _Ground, rank: int, gpu: str) -> tuple[int, tuple[int, ...]]:
    """Into how many parts the rank's node is divided, and which of them are its own.

    Where every rank sees its own GPUs alone, nobody knows on which nodes the others are: the node is then divided among all GPUs there.
    """
    home = ground.homes[rank]
    if ground.apart:
        order = {node: place.nodes_by_distance for node, place in ground.usable.items()}
        near = [address for address in on_bus(ground.s) if _nearest(_node_of(ground.s, address), order, ground) == home]
        mine = tuple(near.index(address) for address in ground.seen.addresses if address in near)
        if mine and gpu in near:
            return len(near), mine
    sharing = [other for other, node in enumerate(ground.homes) if node == home]
    return len(sharing), (sharing.index(rank),)


def _nearest(node: int | None, order: dict[int, tuple[int, ...]], ground: _Ground) -> int | None:
    if node is None or node in order:
        return node
    nodes = {found.id: _by_distance(found, _nodes(ground.s)) for found in _nodes(ground.s)}
    return next((other for other in nodes.get(node, ()) if other in ground.usable), None)


def _share(cores: tuple[CpuSet, ...], parts: int, part: int) -> CpuSet:
    """Whole cores while there is one for each; then hardware threads; then the same CPUs for all."""
    if len(cores) >= parts:
        each = len(cores) // parts
        return CpuSet(cpu for core in cores[part * each : (part + 1) * each] for cpu in core)
    threads = [cpu for core in cores for cpu in core]
    if len(threads) >= parts:
        each = len(threads) // parts
        return CpuSet(threads[part * each : (part + 1) * each])
    return CpuSet(threads)


def _threads(s: Snapshot, cores: int, ranks: int) -> int:
    """One for each physical core; a cgroup's quota is time of all ranks together, wherever they run."""
    quota = math.inf if isinstance(s.cpu, Missing) else known(s.cpu.quota, math.inf)
    return max(min(cores, int(quota // ranks) if math.isfinite(quota) else cores), 1)


def _memory(s: Snapshot, room: Room, home: int) -> tuple[str, int | None]:
    """Bound where that costs nothing but distance; preferred where memory of other kinds or sizes lies elsewhere."""
    nodes = _nodes(s)
    own = next((node for node in nodes if node.id == home), None)
    if len(nodes) < 2 or own is None or not known(room.may_bind_memory, True):
        return "", None
    allowed = None if isinstance(s.numa, Missing) else known(s.numa.allowed_mems, CpuSet())
    sizes = [known(node.memory_bytes, 0) for node in nodes if known(node.cpus, CpuSet())]
    if not known(own.memory_bytes, 0) or (allowed and home not in allowed):
        return "", None
    apart = any(not known(node.cpus, CpuSet()) and known(node.memory_bytes, 0) for node in nodes)
    even = known(own.memory_bytes, 0) * 2 >= max(sizes)
    return ("bind" if even and not apart else "prefer"), home


def _nic(s: Snapshot, gpu: str) -> str:
    """Of equally near cards each GPU gets another."""
    found = () if isinstance(s.pci, Missing) or not gpu else known(s.pci.distances, ())
    mine = _nearest_cards(found, gpu)
    alike = sorted({item.gpu for item in found if _nearest_cards(found, item.gpu) == mine})
    return mine[alike.index(gpu) % len(mine)] if mine else ""


def _nearest_cards(found: Iterable[PciDistance], gpu: str) -> tuple[str, ...]:
    near = [item for item in found if item.gpu == gpu and item.rdma and item.path in CLASSES]
    best = min((CLASSES.index(item.path) for item in near), default=0)
    return tuple(sorted((item.rdma for item in near if item.path == CLASSES[best]), key=natural))


def natural(name: str) -> tuple[str, int]:
    """mlx5_2 before mlx5_10.

    >>> sorted(("mlx5_10", "mlx5_2"), key=natural)
    ['mlx5_2', 'mlx5_10']
    """
    digits = len(name) - len(name.rstrip("0123456789"))
    return name[: len(name) - digits], int(name[len(name) - digits :] or 0)


def _notes(ground: _Ground, seats: tuple[Seat, ...]) -> list[str]:
    s, seen = ground.s, ground.seen
    several = len(_nodes(s)) > 1
    notes = [seen.note] if seen.note else []
    if ground.apart:
        notes.append("Slurm gives each task GPUs of its own: these are the CPUs for the GPUs that this task sees")
    elif seen.addresses and ground.ranks > len(seen.addresses):
        notes.append(f"{ground.ranks} ranks share {len(seen.addresses)} {'GPU' if len(seen.addresses) == 1 else 'GPUs'}")
    lost = sorted({seat.gpu for seat in seats if seat.gpu and _node_of(s, seat.gpu) is None})
    if lost and several:
        notes.append(f"the kernel does not say which NUMA node {', '.join(lost)} belongs to: CPUs are shared out by turns")
    if _unrecorded(need(s.cpu).affinity):
        notes.append("which CPUs the session may use is not recorded: all that are online are shared out")
    if isinstance(ground.room.cores, Missing):
        notes.append(f"which CPUs are threads of one core is not known ({ground.room.cores}): each is taken for a core")
    for node, place in ground.usable.items():
        notes += _crowd(node, place, ground.homes.count(node))
    quota = math.inf if isinstance(s.cpu, Missing) else known(s.cpu.quota, math.inf)
    if quota < sum(len(core) for place in ground.usable.values() for core in place.cores):
        notes.append(f"the cgroup's quota is the time of {quota:g} CPUs for all ranks together: threads are counted by it")
    return notes + [note for note in (memory_refused(s, ground.room),) if note]


def memory_refused(s: Snapshot, room: Room) -> str:
    """What to say where no memory policy can be set though there are several nodes; ``""`` otherwise."""
    if len(_nodes(s)) < 2 or known(room.may_bind_memory, True):
        return ""
    return "memory policy is refused here (containers need CAP_SYS_NICE, or a seccomp profile that allows set_mempolicy)"


def _crowd(node: int, place: _Place, sharing: int) -> list[str]:
    threads, where = sum(len(core) for core in place.cores), "" if node == _WHOLE else f"node {node}: "
    if sharing > threads:
        return [f"{where}{sharing} ranks share the same {threads} {'CPU' if threads == 1 else 'CPUs'}"]
    cores = f"{len(place.cores)} {'core' if len(place.cores) == 1 else 'cores'}"
    return [f"{where}{sharing} ranks on {cores} share cores"] if sharing > len(place.cores) else []
