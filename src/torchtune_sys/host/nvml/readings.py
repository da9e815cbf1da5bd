"""The facts that are read of each GPU, in order, with the NVML calls that return them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtune_sys.host.nvml import links
from torchtune_sys.host.nvml.calls import NvmlCalls, NvmlRefused, missing, refused

_ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin"}  # fmt: skip
_COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
_RECOVERY = ("none", "gpu-reset", "reboot", "drain-p2p", "drain-and-reset", "imex-domain", "bus-reset", "reboot")
_VIRTUAL = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE = 0, 1, 0, 1
_NOT_AVAILABLE = (1 << 64) - 1

Read = Callable[[NvmlCalls, Any], Any]


def address(found: Any) -> str:
    """Return ``0000:18:00.0`` for ``00000000:18:00.0``; domains above 16 bits keep theirs (Azure, VMD)."""
    text = found.busId
    text = (text.decode() if isinstance(text, bytes) else str(text)).strip("\0").lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _text(found: Any) -> str:
    words = found.decode() if isinstance(found, bytes) else str(found)
    if not words.strip("\0 "):
        raise NvmlRefused("not-supported", "an empty text")
    return words.strip("\0 ")


def _architecture(number: int) -> str:
    if number not in _ARCHITECTURES:
        raise NvmlRefused("unparsed", f"architecture {number} is not known to this version")
    return _ARCHITECTURES[number]


def _one(names: str, *args: Any, then: Callable[[Any], Any] = lambda found: found) -> Read:
    return lambda reader, handle: reader.call(names, handle, *args, then=then)


def memory(reader: NvmlCalls, handle: Any) -> Any:
    """Return all and used bytes. The second version (driver 510 and later) does not count as used what the driver keeps for itself: 480 MiB of an idle H100,
    as nvidia-smi shows it."""

    def told(*version: int) -> Any:
        return reader.call("nvmlDeviceGetMemoryInfo", handle, *version, then=lambda found: (found.total, found.used))

    found = told(reader.nvml.nvmlMemory_v2) if hasattr(reader.nvml, "nvmlMemory_v2") else told()
    return told() if refused(found) and found["$missing"] == "not-supported" else found


def clock_event_reasons(reader: NvmlCalls, handle: Any) -> Any:
    """Return new names first: the ``Throttle`` ones go away in CUDA 14, older drivers have only those."""
    found = reader.call("nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if refused(found):
        return found
    mask = reader.call("nvmlDeviceGetSupportedClocksEventReasons, nvmlDeviceGetSupportedClocksThrottleReasons", handle)
    return mask if refused(mask) else found & mask


_HEAT, _BRAKE = 270, 271
"""NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN and _HW_POWER_BRAKE_SLOWDOWN, in nanoseconds as DCGM names them (…_NS)."""


def slowed_by_hardware(reader: NvmlCalls, handle: Any) -> Any:
    heat, brake = reader.field(handle, _HEAT, int), reader.field(handle, _BRAKE, int)
    return heat if refused(heat) else brake if refused(brake) else (heat + brake) / 1e9


def sram_threshold(reader: NvmlCalls, handle: Any) -> Any:
    name = "nvmlDeviceGetSramEccErrorStatus"
    return reader.fill(name, "c_nvmlEccSramErrorStatus_v1_t", handle, lambda found: bool(found.bThresholdExceeded))


def inforom(reader: NvmlCalls, handle: Any) -> Any:
    """Return whether the inforom is valid. NVML has its own error for a corrupted one; what else goes wrong says nothing about it."""
    found = reader.call("nvmlDeviceValidateInforom", handle, then=lambda _: True)
    return False if refused(found) and found["detail"] == "CORRUPTED_INFOROM" else found


def mig_instances(reader: NvmlCalls, handle: Any) -> Any:
    """Return the MIG devices; there may be holes in their numbering."""
    count = reader.call("nvmlDeviceGetMaxMigDeviceCount", handle)
    if refused(count):
        return count
    there = 0
    for index in range(min(count, 64)):
        found = reader.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if not refused(found):
            there += 1
        elif found["detail"] not in ("NOT_FOUND", "INVALID_ARGUMENT"):
            return found
    return there


def processes(reader: NvmlCalls, handle: Any) -> Any:
    names = "nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2"
    found = reader.call(names, handle)
    if refused(found):
        return found
    # A desktop's memory is held by graphics processes: without them it would be nobody's.
    drawing = reader.call(names.replace("Compute", "Graphics"), handle)
    listed = {item.pid: item for item in [*([] if refused(drawing) else drawing), *found]}
    return [_process(item) for item in listed.values()]


def _process(item: Any) -> dict[str, Any]:
    """NVML tells process ids of its own PID namespace; in a container another process may bear that number or none."""
    import psutil

    used = item.usedGpuMemory
    found: dict[str, Any] = {"pid": item.pid}
    found["used_bytes"] = used if used not in (None, _NOT_AVAILABLE) else missing("not-supported", "NVML", "not available")
    for fact, method in (("user", "username"), ("name", "name")):
        try:
            found[fact] = str(getattr(psutil.Process(item.pid), method)())
        except psutil.NoSuchProcess:
            found[fact] = missing("absent", f"/proc/{item.pid}", "no such process in this PID namespace")
        except (psutil.Error, OSError) as error:
            found[fact] = missing("denied", f"/proc/{item.pid}", str(error), "run as root")
    return found


READINGS: tuple[tuple[tuple[str, ...], Read], ...] = (
    (("name",), _one("nvmlDeviceGetName")),
    (("uuid",), _one("nvmlDeviceGetUUID")),
    (("pci_address",), _one("nvmlDeviceGetPciInfo_v3, nvmlDeviceGetPciInfo_v2", then=address)),
    (("architecture",), _one("nvmlDeviceGetArchitecture", then=_architecture)),
    (("compute_capability",), _one("nvmlDeviceGetCudaComputeCapability")),
    (("memory_total_bytes", "memory_used_bytes"), memory),
    (("temperature_c",), _one("nvmlDeviceGetTemperature", 0)),
    # On Ada and later the thresholds are relative, and this margin is what is left (R570 and later).
    (("temperature_margin_c",), _one("nvmlDeviceGetMarginTemperature")),
    (("temperature_operating_c",), _one("nvmlDeviceGetTemperatureThreshold", 3)),
    (("temperature_slowdown_c",), _one("nvmlDeviceGetTemperatureThreshold", 1)),
    (("temperature_shutdown_c",), _one("nvmlDeviceGetTemperatureThreshold", 0)),
    (("utilization_pct",), _one("nvmlDeviceGetUtilizationRates", then=lambda found: found.gpu)),
    (("power_limit_mw",), _one("nvmlDeviceGetEnforcedPowerLimit")),
    (("power_default_mw",), _one("nvmlDeviceGetPowerManagementDefaultLimit")),
    (("power_max_mw",), _one("nvmlDeviceGetPowerManagementLimitConstraints", then=lambda found: found[1])),
    (("clock_event_reasons",), clock_event_reasons),
    (("slowed_by_hardware_s",), slowed_by_hardware),
    (("clock_application_mhz",), _one("nvmlDeviceGetApplicationsClock", 0)),
    (("clock_application_default_mhz",), _one("nvmlDeviceGetDefaultApplicationsClock", 0)),
    (("clock_sm_mhz",), _one("nvmlDeviceGetClockInfo", 1)),
    (("clock_sm_max_mhz",), _one("nvmlDeviceGetMaxClockInfo", 1)),
    (("pcie_gen",), _one("nvmlDeviceGetCurrPcieLinkGeneration")),
    # GetMaxPcieLinkGeneration is the lower of GPU and slot, so it hides a bad slot; the other is the GPU's own (R525 and later).
    (("pcie_gen_max",), _one("nvmlDeviceGetGpuMaxPcieLinkGeneration")),
    (("pcie_width",), _one("nvmlDeviceGetCurrPcieLinkWidth")),
    (("pcie_width_max",), _one("nvmlDeviceGetMaxPcieLinkWidth")),
    (("pcie_replays",), _one("nvmlDeviceGetPcieReplayCounter")),
    (("bar1_total_bytes",), _one("nvmlDeviceGetBAR1MemoryInfo", then=lambda found: found.bar1Total)),
    (("persistence",), _one("nvmlDeviceGetPersistenceMode", then=bool)),
    (("display",), _one("nvmlDeviceGetDisplayActive", then=bool)),
    (("mig",), _one("nvmlDeviceGetMigMode", then=lambda found: bool(found[0]))),
    (("mig_instances",), mig_instances),
    (("compute_mode",), _one("nvmlDeviceGetComputeMode", then=lambda found: _COMPUTE_MODES[found])),
    (("virtualization",), _one("nvmlDeviceGetVirtualizationMode", then=lambda found: _VIRTUAL[found])),
    (("vbios",), _one("nvmlDeviceGetVbiosVersion", then=_text)),
    (("gsp_firmware",), _one("nvmlDeviceGetGspFirmwareVersion", then=_text)),
    (("inforom_valid",), inforom),
    (("ecc", "ecc_pending"), _one("nvmlDeviceGetEccMode", then=lambda found: (bool(found[0]), bool(found[1])))),
    (("ecc_uncorrected_volatile",), _one("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)),
    (("ecc_uncorrected_aggregate",), _one("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _AGGREGATE)),
    (("ecc_corrected_volatile",), _one("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE)),
    (("sram_threshold_exceeded",), sram_threshold),
    (
        ("rows_remapped_correctable", "rows_remapped_uncorrectable", "rows_remap_pending", "rows_remap_failed"),
        _one("nvmlDeviceGetRemappedRows", then=lambda found: (found[0], found[1], bool(found[2]), bool(found[3]))),
    ),
    (
        ("row_banks",),
        _one("nvmlDeviceGetRowRemapperHistogram", then=lambda h: (h.max, h.high, h.partial, h.low, h.none)),
    ),
    # MULTIPLE_SINGLE_BIT_ECC_ERRORS is 0, DOUBLE_BIT_ECC_ERROR 1 (nvml.h).
    (("pages_retired_single_bit",), _one("nvmlDeviceGetRetiredPages", 0, then=len)),
    (("pages_retired_double_bit",), _one("nvmlDeviceGetRetiredPages", 1, then=len)),
    (("pages_retire_pending",), _one("nvmlDeviceGetRetiredPagesPendingStatus", then=bool)),
    (("repair_pending",), _one("nvmlDeviceGetRepairStatus", then=any)),
    (("recovery_action",), lambda reader, handle: reader.field(handle, 230, lambda number: _RECOVERY[number])),
    (("fabric_state", "fabric_status", "fabric_clique", "fabric_health", "fabric_of_hosts"), links.fabric),
    (("nvlinks", "nvlinks_down", "nvlink_version", "nvlink_errors"), links.nvlinks),
    (("processes",), processes),
)
