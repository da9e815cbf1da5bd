"""The placement of each local rank: its GPU, CPUs and memory."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True):
    """An NVIDIA GPU as the kernel's driver tells it without NVML."""

    address: str
    """PCI address, ``0000:1b:00.0``."""
    name: str = ""
    uuid: str = ""


class PlacementFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What placing needs besides the facts that rules judge."""

    cores: Fact[tuple[CpuSet, ...]]
    """The hardware threads of each physical core that is online."""
    may_bind_memory: Fact[bool]
    """Whether set_mempolicy(2) is allowed here: container runtimes' seccomp profiles refuse it without CAP_SYS_NICE."""
    numactl: bool | None = None
    """Whether numactl is installed; None where that is not to be seen."""
    isolated: CpuSet = CpuSet()
    """CPUs that the scheduler does not balance (isolcpus): threads that may use several of them all stay on the first."""
    boards: Fact[tuple[GpuDevice, ...]] = Missing(Why.NOT_RECORDED, "/proc/driver/nvidia/gpus", "not read")
    """The GPUs that this session may open, in the order of the bus."""


class RankPlacement(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    """Local rank: LOCAL_RANK of torchrun."""
    gpu: str
    """PCI address; empty for a rank without a GPU, or where it is unknown which one it takes."""
    gpu_index: int | None
    """CUDA's index within what this job sees, in the order that it sees them."""
    node: int | None
    """NUMA node of the GPU (or the one chosen for a rank without); None where it is not known."""
    cpus: CpuSet
    threads: int = 1
    """OpenMP threads that fit: the seat's physical cores, or the rank's part of the cgroup's quota if that is less."""
    memory: str
    """``bind``, ``prefer`` or empty (no policy)."""
    memory_node: int | None
    nic: str
    """The nearest RDMA device, ``mlx5_0``; empty if there is none."""
    notes: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    seats: tuple[RankPlacement, ...]
    notes: tuple[str, ...]
    """What holds for all: no locality known, CPUs that are not allowed, ranks that share cores."""
