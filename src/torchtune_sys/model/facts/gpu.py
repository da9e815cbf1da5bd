"""GPUs as NVML (or nvidia-smi, or a pasted report) tells them."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    user: Fact[str]
    name: Fact[str]
    used_bytes: Fact[int]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """NVML's index (PCI order), not CUDA's."""
    name: Fact[str]
    uuid: Fact[str]
    pci_address: Fact[str]
    """Lower case, 4-digit domain: ``0000:18:00.0``."""
    compute_capability: Fact[tuple[int, int]]
    memory_total_bytes: Fact[int]
    memory_used_bytes: Fact[int]
    temperature_c: Fact[int]
    power_limit_mw: Fact[int]
    """Enforced limit."""
    power_default_mw: Fact[int]
    clock_event_reasons: Fact[int]
    """Bit mask, already masked by the supported reasons."""
    pcie_gen: Fact[int]
    pcie_gen_max: Fact[int]
    """The GPU's own maximum where the driver tells it (GpuMaxPcieLinkGeneration)."""
    pcie_width: Fact[int]
    pcie_width_max: Fact[int]
    persistence: Fact[bool]
    ecc: Fact[bool]
    """ECC currently enabled; NOT_SUPPORTED on GeForce."""
    ecc_uncorrected_volatile: Fact[int]
    rows_remap_pending: Fact[bool]
    rows_remap_failed: Fact[bool]
    mig: Fact[bool]
    compute_mode: Fact[str]
    """``default``, ``exclusive-process`` or ``prohibited``."""
    processes: Fact[tuple[GpuProcess, ...]]
    lost: bool = False
    """NVML answered GPU_IS_LOST or RESET_REQUIRED for this GPU."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    driver_version: Fact[str]
    cuda_driver_version: Fact[str]
    """Highest CUDA that the driver supports, e.g. ``13.0`` (nvidia-smi's "CUDA Version")."""
    devices: Fact[tuple[Gpu, ...]]
    """Missing carries NVML's error: what the library said and why."""
    vendor: str = "nvidia"
