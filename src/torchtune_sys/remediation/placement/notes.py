"""What to say of a placement: what is not known, who shares what, what is refused."""

from __future__ import annotations

import math

from torchtune_sys.model.placement import PlacementFacts, RankPlacement
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, absent_or_unrecorded, known, need
from torchtune_sys.remediation.placement.cpu_shares import Basis
from torchtune_sys.remediation.placement.usable_cpus import WHOLE, NodeCpus, node_of, nodes_of


def notes_on(basis: Basis, seats: tuple[RankPlacement, ...]) -> list[str]:
    s, seen = basis.s, basis.seen
    several = len(nodes_of(s)) > 1
    notes = [seen.note] if seen.note else []
    if basis.apart:
        notes.append("Slurm gives each task GPUs of its own: these are the CPUs for the GPUs that this task sees")
    elif seen.addresses and basis.ranks > len(seen.addresses):
        notes.append(f"{basis.ranks} ranks share {len(seen.addresses)} {'GPU' if len(seen.addresses) == 1 else 'GPUs'}")
    lost = sorted({seat.gpu for seat in seats if seat.gpu and node_of(s, seat.gpu) is None})
    if lost and several:
        notes.append(f"the kernel does not say which NUMA node {', '.join(lost)} belongs to: CPUs are distributed in turn")
    if absent_or_unrecorded(need(s.cpu).affinity):
        notes.append("which CPUs the session may use is not recorded: all that are online are distributed")
    if isinstance(basis.facts.cores, Missing):
        notes.append(f"which CPUs are threads of one core is not known ({basis.facts.cores}): each is taken for a core")
    for node, place in basis.usable.items():
        notes += _crowd(node, place, basis.homes.count(node))
    quota = math.inf if isinstance(s.cpu, Missing) else known(s.cpu.quota, math.inf)
    if quota < sum(len(core) for place in basis.usable.values() for core in place.cores):
        notes.append(f"the cgroup's quota is the time of {quota:g} CPUs for all ranks together: threads are counted by it")
    return notes + [note for note in (memory_refused(s, basis.facts),) if note]


def memory_refused(s: Snapshot, facts: PlacementFacts) -> str:
    """Return what to say where no memory policy can be set though there are several nodes; ``""`` otherwise."""
    if len(nodes_of(s)) < 2 or known(facts.may_bind_memory, True):
        return ""
    return "memory policy is refused here (containers need CAP_SYS_NICE, or a seccomp profile that allows set_mempolicy)"


def _crowd(node: int, place: NodeCpus, sharing: int) -> list[str]:
    threads, where = sum(len(core) for core in place.cores), "" if node == WHOLE else f"node {node}: "
    if sharing > threads:
        return [f"{where}{sharing} ranks share the same {threads} {'CPU' if threads == 1 else 'CPUs'}"]
    cores = f"{len(place.cores)} {'core' if len(place.cores) == 1 else 'cores'}"
    return [f"{where}{sharing} ranks on {cores} share cores"] if sharing > len(place.cores) else []
