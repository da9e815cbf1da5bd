"""Machines to place ranks on, and what must hold of every placing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.numa import NumaFacts, NumaNode
from torchtune_sys.model.facts.pci import PciDevice, PciFacts, PciLink
from torchtune_sys.model.facts.session import SessionFacts, Workload
from torchtune_sys.model.placement import GpuDevice, Placement, PlacementFacts
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why, known, need

NOT_LOOKED = Missing(Why.NOT_RECORDED, "test", "not looked at")
_LINK = PciLink(current_gts=NOT_LOOKED, max_gts=NOT_LOOKED, current_width=NOT_LOOKED, max_width=NOT_LOOKED)
Gpus = Sequence[tuple[str, int]]
"""Address and node."""


def gpus(*nodes: int) -> Gpus:
    return tuple((f"0000:{0x10 + number:02x}:00.0", node) for number, node in enumerate(nodes))


def machine(
    nodes: Sequence[tuple[int, int]],
    cards: Gpus = (),
    *,
    threads: int = 1,
    allowed: CpuSet | None = None,
    cpuset: CpuSet | None = None,
    offline: frozenset[int] = frozenset(),
    quota: float = math.inf,
    mems: CpuSet | None = None,
    env: dict[str, str] | None = None,
    vendor: str = "0x10de",
) -> tuple[Snapshot, PlacementFacts]:
    """``nodes``: cores and GiB of each. Second threads are numbered after all cores, as on x86."""
    total, first, by_node = sum(count for count, _ in nodes), 0, []
    for count, gib in nodes:
        mine = [CpuSet(core + total * thread for thread in range(threads)) for core in range(first, first + count)]
        by_node.append((mine, gib))
        first += count
    return built(by_node, cards, allowed=allowed, cpuset=cpuset, offline=offline, quota=quota, mems=mems, env=env, vendor=vendor)


def built(
    by_node: Sequence[tuple[Sequence[CpuSet], int]],
    cards: Gpus = (),
    *,
    allowed: CpuSet | None = None,
    cpuset: CpuSet | None = None,
    offline: frozenset[int] = frozenset(),
    quota: float = math.inf,
    mems: CpuSet | None = None,
    env: dict[str, str] | None = None,
    vendor: str = "0x10de",
) -> tuple[Snapshot, PlacementFacts]:
    """The hardware threads of each core, and GiB, of each node."""
    cores: list[CpuSet] = []
    made: list[NumaNode] = []
    for number, (mine, gib) in enumerate(by_node):
        cores += mine
        cpus = CpuSet(cpu for core in mine for cpu in core if cpu not in offline)
        row = tuple(10 if other == number else 21 + abs(other - number) for other in range(len(by_node)))
        made.append(NumaNode(id=number, cpus=cpus, memory_bytes=gib << 30, free_bytes=gib << 29, distances=row))
    online = CpuSet(cpu for core in cores for cpu in core if cpu not in offline)
    cpu: dict[str, Any] = dict.fromkeys(CpuFacts.__struct_fields__, NOT_LOOKED)
    cpu |= {
        "online": online,
        "affinity": online if allowed is None else allowed,
        "cpuset": cpuset if cpuset is not None else NOT_LOOKED,
        "quota": quota,
        "quota_source": "",
    }
    driver = {"0x10de": "nvidia", "0x1002": "amdgpu"}[vendor]
    devices = tuple(
        PciDevice(
            address=address, class_="0x030200" if driver == "nvidia" else "0x120000", vendor=vendor, device="0x2330",
            subsystem_vendor="", subsystem_device="", numa_node=node, driver=driver, link=_LINK, parent="", iommu_group=NOT_LOOKED,
        )
        for address, node in cards
    )  # fmt: skip
    session = SessionFacts(
        user="u", uid=1000, sudo_user="", passwd_entry=True, env=env or {}, virtual_env="", cwd="/", preloads={}
    )
    facts: dict[str, Any] = dict.fromkeys(FAMILIES, NOT_LOOKED)
    everywhere = CpuSet(node.id for node in made if need(node.memory_bytes))
    facts |= {
        "session": session,
        "cpu": CpuFacts(**cpu),
        "numa": NumaFacts(nodes=tuple(made), offline=(), allowed_mems=everywhere if mems is None else mems),
        "pci": PciFacts(devices=devices),
    }
    boards = tuple(
        GpuDevice(address=address, name="H100", uuid=f"GPU-{number:04x}-1") for number, (address, _) in enumerate(cards)
    )
    there = tuple(CpuSet(core - offline) for core in cores if core - offline)
    room = PlacementFacts(cores=there, may_bind_memory=True, boards=boards if driver == "nvidia" else NOT_LOOKED)
    return Snapshot(**facts, intent=Workload()), room


def broken(s: Snapshot, room: PlacementFacts, seating: Placement) -> list[str]:
    """Which of the promises a placing breaks; written without the planner."""
    cpu = need(s.cpu)
    allowed = set(known(cpu.affinity, need(cpu.online))) & set(known(cpu.online, CpuSet(range(1 << 16))))
    allowed &= set(known(cpu.cpuset, CpuSet(allowed)))
    said = " ".join(seating.notes)
    crowded = "share cores" in said or "share the same" in said
    nodes = {} if isinstance(s.numa, Missing) else {n.id: set(known(n.cpus, CpuSet())) for n in known(s.numa.nodes, ())}
    core_of = {cpu_: number for number, core in enumerate(known(room.cores, ())) for cpu_ in core}
    wrong = []
    for seat in seating.seats:
        cpus = set(seat.cpus)
        if not cpus or not cpus <= allowed:
            wrong.append(f"rank {seat.rank}: {seat.cpus} of {sorted(allowed)}")
        near = nodes.get(seat.node, set()) & allowed if seat.node is not None else set()
        if seat.gpu and near and not cpus <= near and "in turn" not in said:
            wrong.append(f"rank {seat.rank}: {seat.cpus} away from node {seat.node}")
        if core_of and not 1 <= seat.threads <= len({core_of[cpu_] for cpu_ in cpus}):
            wrong.append(f"rank {seat.rank}: {seat.threads} threads on {seat.cpus}")
        if seat.memory and not cpus <= nodes[seat.memory_node or 0]:
            wrong.append(f"rank {seat.rank}: memory of node {seat.memory_node} for {seat.cpus}")
        for other in seating.seats[: seat.rank]:
            if set(other.cpus) & cpus and "share the same" not in said:
                wrong.append(f"ranks {other.rank} and {seat.rank} share {sorted(set(other.cpus) & cpus)}")
            same_core = {core_of.get(cpu_) for cpu_ in other.cpus} & {core_of.get(cpu_) for cpu_ in cpus} - {None}
            if same_core and not crowded:
                wrong.append(f"ranks {other.rank} and {seat.rank} share cores")
    by_node: dict[frozenset[int], list[set[int]]] = {}
    for seat in seating.seats:
        home = frozenset(number for number, cpus_ in nodes.items() if set(seat.cpus) & cpus_)
        by_node.setdefault(home, []).append(set(seat.cpus))
    for home, shares in by_node.items():
        # Whole cores are counted as such, of which one may have fewer CPUs than another; where ranks share cores, CPUs.
        cores = {len({core_of.get(cpu_, cpu_) for cpu_ in share}) for share in shares}
        if len(cores) > 1 and len({len(share) for share in shares}) > 1:
            wrong.append(f"unequal shares on nodes {sorted(home)}: {shares}")
    return wrong
