"""NUMA nodes."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    cpus: Fact[CpuSet]
    """Online CPUs of the node; empty for memory-only nodes (CXL, GPU memory)."""
    memory_bytes: Fact[int]
    """MemTotal of the node, bytes."""
    free_bytes: Fact[int]
    distances: Fact[tuple[int, ...]]
    """ACPI SLIT row: distance to each online node in ascending id order (10 = local)."""
    gpu_memory: bool = False
    """True where the node is a GPU's memory (POWER9, Grace)."""


class NumaFacts(msgspec.Struct, frozen=True, kw_only=True):
    nodes: Fact[tuple[NumaNode, ...]]
    """Online nodes, by id. A kernel without NUMA gives Missing(ABSENT)."""
    offline: Fact[tuple[int, ...]]
    """Nodes the kernel knows as possible and present but not online."""
    allowed_mems: Fact[CpuSet]
    """Mems_allowed_list of this session."""
