"""Seats for the local ranks: CPUs and memory near each rank's GPU, disjoint, within what this session may use.

A rank gets whole physical cores, all their hardware threads included, since its DataLoader workers run there too. Ranks whose GPUs
share a NUMA node get equal shares of it, cores in ascending order; what does not divide is left to the operating system.
Every rank's own process comes to the same answer, since nothing that moves (free memory, load) is asked.
"""

from __future__ import annotations

import math

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.launchers import slurm_gives_gpus_to_each
from torchtune_sys.model.placement import Placement, PlacementFacts, RankPlacement
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, known
from torchtune_sys.remediation.placement.cpu_shares import Basis, homes_of, parts_of, share
from torchtune_sys.remediation.placement.gpus import Visible, visible
from torchtune_sys.remediation.placement.nics import nic
from torchtune_sys.remediation.placement.notes import notes_on
from torchtune_sys.remediation.placement.usable_cpus import WHOLE, node_of, nodes_of, places_here, whole


def place_ranks(s: Snapshot, facts: PlacementFacts, ranks: int | None, *, one_thread_per_core: bool = False) -> Placement:
    """Place each local rank; ``ranks`` None is one for each GPU. Raises Unknown where the CPUs of this session could not be read."""
    basis, gpus = _basis(s, facts, ranks, one_thread_per_core)
    seats = tuple(_rank_placement(basis, rank, gpus[rank]) for rank in range(basis.ranks))
    return Placement(seats=seats, notes=tuple(notes_on(basis, seats)))


def place_rank(
    s: Snapshot, facts: PlacementFacts, rank: int, ranks: int | None, *, one_thread_per_core: bool
) -> RankPlacement | int:
    """Place one rank, or return how many there are where it has no place. Raises Unknown as ``place_ranks``."""
    basis, gpus = _basis(s, facts, ranks, one_thread_per_core)
    return _rank_placement(basis, rank, gpus[rank]) if rank < basis.ranks else basis.ranks


def _basis(s: Snapshot, facts: PlacementFacts, ranks: int | None, one_thread_per_core: bool) -> tuple[Basis, list[str]]:
    """Return what all placements are made of, and each rank's GPU."""
    seen = visible(s, facts.boards)
    ranks = ranks or len(seen.addresses) or 1
    apart = slurm_gives_gpus_to_each(variables_told(s), ranks, len(seen.addresses))
    places = places_here(s, facts, one_thread_per_core)
    usable = {place.id: place for place in places if place.cores}
    gpus = [_gpu_of(seen, rank, apart) for rank in range(ranks)]
    nodes = [node_of(s, gpu) if gpu else _common_node(s, seen) for gpu in gpus]
    if ranks < len(usable) and not any(node in usable for node in nodes):
        usable, nodes = {WHOLE: whole(places)}, [WHOLE] * ranks
    homes = homes_of(nodes, places, usable)
    return Basis(s=s, facts=facts, ranks=ranks, seen=seen, apart=apart, usable=usable, homes=homes), gpus


def place_bound_rank(
    s: Snapshot, facts: PlacementFacts, rank: int, ranks: int | None, *, one_thread_per_core: bool = False
) -> RankPlacement:
    """Place a rank that its starter bound already: it gets all that it may use; memory where all these CPUs are of one node.

    Raises Unknown as ``place_ranks``."""
    seen = visible(s, facts.boards)
    ranks = max(ranks or 1, rank + 1)
    apart = slurm_gives_gpus_to_each(variables_told(s), ranks, len(seen.addresses))
    usable = [place for place in places_here(s, facts, one_thread_per_core) if place.cores]
    gpu = _gpu_of(seen, rank, apart)
    cores = [core for place in usable for core in place.cores]
    memory, memory_node = _memory(s, facts, usable[0].id) if len(usable) == 1 else ("", None)
    node = node_of(s, gpu)
    away = node is not None and len(nodes_of(s)) > 1 and node not in {place.id for place in usable}
    return RankPlacement(
        rank=rank,
        gpu=gpu,
        gpu_index=_index_of(seen, rank, apart),
        node=node,
        cpus=CpuSet(cpu for core in cores for cpu in core),
        threads=_threads(s, len(cores), ranks),
        memory=memory,
        memory_node=memory_node,
        nic=nic(s, gpu),
        notes=(f"bound away from node {node}, where its GPU is: mpirun --bind-to none, srun --cpu-bind=none leave it to launch",)
        if away
        else (),
    )


def _index_of(seen: Visible, rank: int, apart: bool) -> int | None:
    if not seen.addresses:
        return None
    return 0 if apart else rank % len(seen.addresses)


def _gpu_of(seen: Visible, rank: int, apart: bool) -> str:
    index = _index_of(seen, rank, apart)
    return "" if index is None else seen.addresses[index]


def _common_node(s: Snapshot, seen: Visible) -> int | None:
    """Where it is not known which GPU a rank takes, but all lie at one node."""
    found = {node_of(s, address) for address in seen.candidates}
    return found.pop() if len(found) == 1 else None


def _rank_placement(basis: Basis, rank: int, gpu: str) -> RankPlacement:
    s, home = basis.s, basis.homes[rank]
    cores = basis.usable[home].cores
    parts, mine = parts_of(basis, rank, gpu)
    shares = [share(cores, parts, part) for part in mine]
    node = node_of(s, gpu) if gpu else None
    memory, memory_node = _memory(s, basis.facts, home)
    far = node is not None and home not in (node, WHOLE) and len(nodes_of(s)) > 1
    return RankPlacement(
        rank=rank,
        gpu=gpu,
        gpu_index=_index_of(basis.seen, rank, basis.apart),
        node=home if node is None and not gpu and home != WHOLE else node,
        cpus=CpuSet(cpu for share in shares for cpu in share),
        threads=_threads(s, max(len(mine) * (len(cores) // parts), 1), basis.ranks),
        memory=memory,
        memory_node=memory_node,
        nic=nic(s, gpu),
        notes=(f"no CPU of node {node}, where its GPU is, may be used here: node {home} is the nearest",) if far else (),
    )


def _threads(s: Snapshot, cores: int, ranks: int) -> int:
    """One for each physical core; a cgroup's quota is time of all ranks together, wherever they run."""
    quota = math.inf if isinstance(s.cpu, Missing) else known(s.cpu.quota, math.inf)
    return max(min(cores, int(quota // ranks) if math.isfinite(quota) else cores), 1)


def _memory(s: Snapshot, facts: PlacementFacts, home: int) -> tuple[str, int | None]:
    """Bound where that costs nothing but distance; preferred where memory of other kinds or sizes lies elsewhere."""
    nodes = nodes_of(s)
    own = next((node for node in nodes if node.id == home), None)
    if len(nodes) < 2 or own is None or not known(facts.may_bind_memory, True):
        return "", None
    allowed = None if isinstance(s.numa, Missing) else known(s.numa.allowed_mems, CpuSet())
    sizes = [known(node.memory_bytes, 0) for node in nodes if known(node.cpus, CpuSet())]
    if not known(own.memory_bytes, 0) or (allowed and home not in allowed):
        return "", None
    apart = any(not known(node.cpus, CpuSet()) and known(node.memory_bytes, 0) for node in nodes)
    even = known(own.memory_bytes, 0) * 2 >= max(sizes)
    return ("bind" if even and not apart else "prefer"), home
