"""GPUs as NVML (or nvidia-smi, or a pasted report) tells them."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

NOT_READ = Missing(Why.NOT_RECORDED, "NVML", "not read")
"""What a field holds that the recording or report at hand does not have."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    user: Fact[str] = NOT_READ
    name: Fact[str] = NOT_READ
    used_bytes: Fact[int] = NOT_READ


class LinkErrors(msgspec.Struct, frozen=True, kw_only=True):
    """What one NVLink has counted since the driver was loaded."""

    link: int
    replay: int = 0
    recovery: int = 0
    crc_flit: int = 0
    crc_data: int = 0
    recovery_failed: int = 0
    """NVLink 5 tells only recoveries, successful and failed."""


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """What two GPUs may do with each other's memory: ``ok``, or why not (``topology-not-supported`` …)."""

    first: int
    second: int
    read: Fact[str] = NOT_READ
    write: Fact[str] = NOT_READ
    nvlink: Fact[str] = NOT_READ
    nvlinks: Fact[int] = NOT_READ
    """How many NVLinks lead from one to the other, over a switch or directly (``NV18`` of ``nvidia-smi topo -m``)."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. In JSON this is the shape that the NVML child prints, a missing fact being ``{"$missing": why, …}``."""

    index: int
    """NVML's index (PCI order), not CUDA's."""
    name: Fact[str] = NOT_READ
    """As NVML prints it; tables of nvidia-smi cut it, and then it ends with an ellipsis."""
    uuid: Fact[str] = NOT_READ
    pci_address: Fact[str] = NOT_READ
    """Lower case, 4-digit domain: ``0000:18:00.0``."""
    architecture: Fact[str] = NOT_READ
    """``Turing`` …, as nvidia-smi prints it."""
    compute_capability: Fact[tuple[int, int]] = NOT_READ
    memory_total_bytes: Fact[int] = NOT_READ
    memory_used_bytes: Fact[int] = NOT_READ
    temperature_c: Fact[int] = NOT_READ
    temperature_margin_c: Fact[int] = NOT_READ
    """Degrees left to the maximum operating temperature (nvmlDeviceGetMarginTemperature, R570 and later; nvidia-smi's T.Limit)."""
    temperature_operating_c: Fact[int] = NOT_READ
    """Maximum operating temperature, above which the driver lowers the clocks (NVML_TEMPERATURE_THRESHOLD_GPU_MAX)."""
    temperature_slowdown_c: Fact[int] = NOT_READ
    temperature_shutdown_c: Fact[int] = NOT_READ
    utilization_pct: Fact[int] = NOT_READ
    """Share of the last second in which a kernel ran."""
    power_limit_mw: Fact[int] = NOT_READ
    """Enforced limit."""
    power_default_mw: Fact[int] = NOT_READ
    power_max_mw: Fact[int] = NOT_READ
    """The highest limit that may be set (nvmlDeviceGetPowerManagementLimitConstraints)."""
    clock_event_reasons: Fact[int] = NOT_READ
    """Bit mask, already masked by the supported reasons."""
    slowed_by_hardware_s: Fact[float] = NOT_READ
    """How long hardware has at least halved the clocks, for heat or a power brake, since the driver was loaded (R570 and later)."""
    clock_application_mhz: Fact[int] = NOT_READ
    """Graphics clock that programs are given (nvidia-smi -ac); NOT_SUPPORTED on GeForce."""
    clock_application_default_mhz: Fact[int] = NOT_READ
    clock_sm_mhz: Fact[int] = NOT_READ
    """Clock of the multiprocessors at the moment of the look: low where nothing runs."""
    clock_sm_max_mhz: Fact[int] = NOT_READ
    """The highest that the GPU may run at; locked clocks do not change it."""
    pcie_gen: Fact[int] = NOT_READ
    pcie_gen_max: Fact[int] = NOT_READ
    """The GPU's own maximum where the driver tells it (GpuMaxPcieLinkGeneration), else, in older reports, that of GPU and slot together."""
    pcie_width: Fact[int] = NOT_READ
    pcie_width_max: Fact[int] = NOT_READ
    """Of GPU and slot together: an x16 card in an x8 slot says 8."""
    pcie_replays: Fact[int] = NOT_READ
    """Since the driver was loaded; a rate matters, not this number."""
    bar1_total_bytes: Fact[int] = NOT_READ
    persistence: Fact[bool] = NOT_READ
    display: Fact[bool] = NOT_READ
    """A display runs on this GPU (nvidia-smi's "Disp.A"), which keeps the driver's state alive."""
    ecc: Fact[bool] = NOT_READ
    """ECC currently enabled; NOT_SUPPORTED on GeForce."""
    ecc_pending: Fact[bool] = NOT_READ
    """Whether ECC is on after the next reset."""
    ecc_uncorrected_volatile: Fact[int] = NOT_READ
    """Uncorrected errors since the driver was loaded."""
    ecc_uncorrected_aggregate: Fact[int] = NOT_READ
    """In the GPU's life."""
    ecc_corrected_volatile: Fact[int] = NOT_READ
    sram_threshold_exceeded: Fact[bool] = NOT_READ
    """The GPU's own flag for too many uncorrectable errors in its SRAM (R550 and later)."""
    rows_remapped_correctable: Fact[int] = NOT_READ
    rows_remapped_uncorrectable: Fact[int] = NOT_READ
    rows_remap_pending: Fact[bool] = NOT_READ
    rows_remap_failed: Fact[bool] = NOT_READ
    row_banks: Fact[tuple[int, int, int, int, int]] = NOT_READ
    """Memory banks by the spare rows that they have left: all, many, some, few, none."""
    pages_retired_single_bit: Fact[int] = NOT_READ
    pages_retired_double_bit: Fact[int] = NOT_READ
    pages_retire_pending: Fact[bool] = NOT_READ
    """Page retirement (before Ampere) that waits for a reset."""
    repair_pending: Fact[bool] = NOT_READ
    """A repair of a memory channel or a TPC that waits for a reset (R580 and later)."""
    inforom_valid: Fact[bool] = NOT_READ
    vbios: Fact[str] = NOT_READ
    gsp_firmware: Fact[str] = NOT_READ
    """Its version; NOT_SUPPORTED where the GPU runs without."""
    virtualization: Fact[str] = NOT_READ
    """``none``, ``passthrough``, ``vgpu`` (this is a virtual machine), ``host-vgpu`` or ``host-vsga``."""
    licensed: Fact[bool] = NOT_READ
    """Whether a vGPU has its software licence, as nvidia-smi -q alone tells."""
    recovery_action: Fact[str] = NOT_READ
    """``none``, ``gpu-reset``, ``reboot``, ``drain-p2p``, ``drain-and-reset`` or ``imex-domain`` (NVML field 230, R570 and later)."""
    mig: Fact[bool] = NOT_READ
    mig_instances: Fact[int] = NOT_READ
    compute_mode: Fact[str] = NOT_READ
    """``default``, ``exclusive-thread``, ``exclusive-process`` or ``prohibited``."""
    fabric_state: Fact[str] = NOT_READ
    """``not-supported``, ``not-started``, ``in-progress`` or ``completed`` (Hopper and later on NVSwitch hosts)."""
    fabric_status: Fact[str] = NOT_READ
    """How the registration with the fabric ended, ``success`` or NVML's name of an error; ABSENT as long as it has not ended."""
    fabric_clique: Fact[int] = NOT_READ
    fabric_of_hosts: Fact[bool] = NOT_READ
    """Whether its NVLinks lead to GPUs of other hosts (GH200 NVL32, GB200 NVL72): the fabric has a cluster's id then."""
    fabric_health: Fact[tuple[str, ...]] = NOT_READ
    """What the fabric's health mask complains of; empty if of nothing."""
    nvlink_version: Fact[int] = NOT_READ
    """NVML's number of the NVLink version of the first link that is up."""
    nvlink_errors: Fact[tuple[LinkErrors, ...]] = NOT_READ
    """The links that have counted errors."""
    nvlinks_down: Fact[tuple[int, ...]] = NOT_READ
    """Numbers of the NVLinks that are inactive; NOT_SUPPORTED without NVLink."""
    nvlinks: Fact[int] = NOT_READ
    """How many NVLinks the GPU reports at all."""
    processes: Fact[tuple[GpuProcess, ...]] = NOT_READ
    """Compute processes; GPUs in a container or with another user's processes may show fewer than there are."""
    lost: bool = False
    """NVML answered GPU_IS_LOST or RESET_REQUIRED for this GPU: it can be asked nothing more."""
    reset_required: bool = False
    """Of a lost one, that it was RESET_REQUIRED: a reset brings it back."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    driver_version: Fact[str] = NOT_READ
    cuda_driver_version: Fact[str] = NOT_READ
    """Highest CUDA that the driver supports, e.g. ``13.0`` (nvidia-smi's "CUDA Version")."""
    library_version: Fact[str] = NOT_READ
    """Version of the NVML library."""
    confidential: Fact[str] = NOT_READ
    """Confidential computing: ``off``, ``ready``, or ``not-ready``, in which GPUs take no work until somebody has attested them."""
    devices: Fact[tuple[Gpu, ...]] = NOT_READ
    """Missing carries NVML's error: what the library said and why."""
    some_only: bool = False
    """Whether the source names one of the GPUs and not how many there are (collect_env of a ROCm build)."""
    p2p: Fact[tuple[Peers, ...]] = NOT_READ
    """Every pair of GPUs once."""
    vendor: str = "nvidia"
    error: str = ""
    """NVML's name for what made it fail as a whole (``LIB_RM_VERSION_MISMATCH``, ``DRIVER_NOT_LOADED`` …); ``""`` if it did not."""
    worked_before: bool = False
    """A report shows that the same session had reached the GPUs before ``error``."""
    source: str = "NVML"
    """``NVML``, ``nvidia-smi`` or ``report``."""


def without(missing: Missing, error: str = "") -> GpuFacts:
    """Return what is known of the GPUs if ``missing`` is why they could not be asked."""
    return GpuFacts(
        driver_version=missing,
        cuda_driver_version=missing,
        library_version=missing,
        confidential=missing,
        devices=missing,
        p2p=missing,
        error=error,
    )
