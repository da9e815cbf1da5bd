"""Ask NVML, in a process of its own: it may hang or crash, and must not take the tool with it.

Run as a file under ``python -I``. Prints one JSON object, the shape of ``model.facts.gpu.GpuFacts``. Each call is guarded by
itself, because old drivers lack functions, GeForce and vGPU refuse some, and MIG and a lost GPU refuse others: a refusal
becomes ``{"$missing": why, "source": call, "detail": …}`` in the place of that one fact.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

_WHY = {
    "NOT_SUPPORTED": "not-supported",
    "FUNCTION_NOT_FOUND": "not-supported",
    "ARGUMENT_VERSION_MISMATCH": "not-supported",
    "DEPRECATED": "not-supported",
    "VGPU_ECC_NOT_SUPPORTED": "not-supported",
    "NO_PERMISSION": "denied",
    "OPERATING_SYSTEM": "denied",
    "LIBRARY_NOT_FOUND": "no-tool",
    "DRIVER_NOT_LOADED": "absent",
    "NO_DATA": "absent",
    "TIMEOUT": "timeout",
}
"""Everything else is ``failed``. OPERATING_SYSTEM: the operating system or a cgroup blocks the device (nvml.h)."""
_TELLS = {
    "DRIVER_NOT_LOADED": "the NVIDIA kernel module is not loaded",
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 cannot be loaded",
    "LIB_RM_VERSION_MISMATCH": "the loaded kernel module and the user-space library have different versions",
    "NO_PERMISSION": "permission denied",
    "OPERATING_SYSTEM": "the operating system or a cgroup blocks the GPU's control device",
    "FUNCTION_NOT_FOUND": "this driver's library does not have the function",
    "NOT_SUPPORTED": "not supported by this GPU",
    "GPU_IS_LOST": "the GPU has fallen off the bus or is otherwise inaccessible",
    "RESET_REQUIRED": "the GPU needs a reset before it can be used again",
}
_LOST = frozenset(("GPU_IS_LOST", "RESET_REQUIRED"))
_ARCHITECTURES = {2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin"}  # fmt: skip
_COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
_RECOVERY = ("none", "gpu-reset", "reboot", "drain-p2p", "drain-and-reset", "imex-domain", "bus-reset", "reboot")
_FABRIC = ("not-supported", "not-started", "in-progress", "completed")
_MAX_NVLINKS = 36
_NOT_AVAILABLE = (1 << 64) - 1


class Refused(Exception):
    """An answer that NVML gives as a value but that means none."""

    def __init__(self, why: str, detail: str) -> None:
        super().__init__(detail)
        self.why = why


def missing(why: str, source: str, detail: str, remedy: str = "") -> dict[str, str]:
    found = {"$missing": why, "source": source, "detail": detail}
    return {**found, "remedy": remedy} if remedy else found


class Reader:
    """Calls by name; remembers whether the GPU was reported lost."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.lost = False
        self._names = {
            getattr(nvml, name): name.removeprefix("NVML_ERROR_") for name in dir(nvml) if name.startswith("NVML_ERROR_")
        }

    def name(self, error: Any) -> str:
        code = getattr(error, "value", None)
        return self._names.get(code, f"error {code}")

    def refusal(self, error: Any, call: str) -> dict[str, str]:
        name = self.name(error)
        self.lost = self.lost or name in _LOST
        why = _WHY.get(name, "failed")
        return missing(why, call, _TELLS.get(name, name), "run as root" if why == "denied" else "")

    def call(self, names: str, *args: Any, then: Callable[[Any], Any] = lambda found: found) -> Any:
        """The first of several functions ("new, old") that this library has."""
        alternatives = names.split(", ")
        for position, name in enumerate(alternatives):
            try:
                function = getattr(self.nvml, name, None)
                if function is None:
                    raise self.nvml.NVMLError(self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
                return then(function(*args))
            except self.nvml.NVMLError as error:
                if self.name(error) == "FUNCTION_NOT_FOUND" and position + 1 < len(alternatives):
                    continue
                return self.refusal(error, name)
            except Refused as refused:
                return missing(refused.why, name, str(refused))
            except (ValueError, TypeError, IndexError, AttributeError, UnicodeDecodeError) as error:
                return missing("unparsed", name, f"{type(error).__name__}: {error}")
        raise AssertionError("no function given")


def address(found: Any) -> str:
    """``00000000:18:00.0`` → ``0000:18:00.0``; domains above 16 bits keep theirs (Azure, VMD)."""
    text = found.busId
    text = (text.decode() if isinstance(text, bytes) else str(text)).strip("\0").lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def device(reader: Reader, index: int) -> dict[str, Any]:
    reader.lost = False
    handle = reader.call("nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, dict):
        names = ("name", "uuid", "pci_address", "compute_capability", "memory_total_bytes", "memory_used_bytes", "processes")
        return {"index": index, "lost": reader.lost, **dict.fromkeys(names, handle)}
    found = {"index": index, **identity(reader, handle), **state(reader, handle), **health(reader, handle)}
    found["processes"] = processes(reader, handle)
    found["lost"] = reader.lost
    return found


def identity(reader: Reader, handle: Any) -> dict[str, Any]:
    memory = reader.call("nvmlDeviceGetMemoryInfo", handle)
    known = not isinstance(memory, dict)
    return {
        "name": reader.call("nvmlDeviceGetName", handle),
        "uuid": reader.call("nvmlDeviceGetUUID", handle),
        "pci_address": reader.call("nvmlDeviceGetPciInfo_v3, nvmlDeviceGetPciInfo_v2", handle, then=address),
        "architecture": reader.call("nvmlDeviceGetArchitecture", handle, then=_architecture),
        "compute_capability": reader.call("nvmlDeviceGetCudaComputeCapability", handle),
        "memory_total_bytes": memory.total if known else memory,
        "memory_used_bytes": memory.used if known else memory,
    }


def _architecture(number: int) -> str:
    if number not in _ARCHITECTURES:
        raise Refused("unparsed", f"architecture {number} is not known to this version")
    return _ARCHITECTURES[number]


def state(reader: Reader, handle: Any) -> dict[str, Any]:
    call = reader.call
    return {
        "temperature_c": call("nvmlDeviceGetTemperature", handle, 0),
        "utilization_pct": call("nvmlDeviceGetUtilizationRates", handle, then=lambda found: found.gpu),
        "power_limit_mw": call("nvmlDeviceGetEnforcedPowerLimit", handle),
        "power_default_mw": call("nvmlDeviceGetPowerManagementDefaultLimit", handle),
        "clock_event_reasons": clock_event_reasons(reader, handle),
        "pcie_gen": call("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        # GetMaxPcieLinkGeneration is the lower of GPU and slot, so it hides a bad slot; the other is the GPU's own (R525 and later).
        "pcie_gen_max": call("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        "pcie_width": call("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": call("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "persistence": call("nvmlDeviceGetPersistenceMode", handle, then=bool),
        "display": call("nvmlDeviceGetDisplayActive", handle, then=bool),
        "mig": call("nvmlDeviceGetMigMode", handle, then=lambda found: bool(found[0])),
        "compute_mode": call("nvmlDeviceGetComputeMode", handle, then=lambda found: _COMPUTE_MODES[found]),
    }


def clock_event_reasons(reader: Reader, handle: Any) -> Any:
    """New names first: the ``Throttle`` ones go away in CUDA 14, older drivers have only those."""
    found = reader.call("nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    mask = reader.call("nvmlDeviceGetSupportedClocksEventReasons, nvmlDeviceGetSupportedClocksThrottleReasons", handle)
    return found if isinstance(found, dict) or isinstance(mask, dict) else found & mask


def health(reader: Reader, handle: Any) -> dict[str, Any]:
    remapped = reader.call("nvmlDeviceGetRemappedRows", handle)
    known = not isinstance(remapped, dict)
    links = nvlinks(reader, handle)
    return {
        "ecc": reader.call("nvmlDeviceGetEccMode", handle, then=lambda found: bool(found[0])),
        "ecc_uncorrected_volatile": reader.call("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        "rows_remap_pending": bool(remapped[2]) if known else remapped,
        "rows_remap_failed": bool(remapped[3]) if known else remapped,
        "pages_retire_pending": reader.call("nvmlDeviceGetRetiredPagesPendingStatus", handle, then=bool),
        "recovery_action": reader.call("nvmlDeviceGetFieldValues", handle, [230], then=lambda found: _recovery(reader, found)),
        "fabric_state": fabric_state(reader, handle),
        "nvlinks": len(links) if isinstance(links, list) else links,
        "nvlinks_down": [link for link, up in enumerate(links) if not up] if isinstance(links, list) else links,
    }


def _recovery(reader: Reader, values: Any) -> str:
    if values[0].nvmlReturn != 0:
        raise reader.nvml.NVMLError(values[0].nvmlReturn)
    return _RECOVERY[values[0].value.uiVal]


def fabric_state(reader: Reader, handle: Any) -> Any:
    """Version 2 of the structure came with R550; before, there is a call without versions (R530)."""
    answer = _fabric_state(reader, handle, "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t")
    if isinstance(answer, dict) and answer["detail"] == _TELLS["FUNCTION_NOT_FOUND"]:
        return _fabric_state(reader, handle, "nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t")
    return answer


def _fabric_state(reader: Reader, handle: Any, function: str, kind: str) -> Any:
    from ctypes import byref

    found = getattr(reader.nvml, kind)()
    answer = reader.call(function, handle, byref(found))
    if isinstance(answer, dict):
        return answer
    return _FABRIC[found.state] if found.state < len(_FABRIC) else missing("unparsed", function, f"state {found.state}")


def nvlinks(reader: Reader, handle: Any) -> Any:
    """Whether each link is up. NOT_SUPPORTED on link 0 means no NVLink, on link k that there are k links; the number of links that the
    header allows (36) exceeds what any GPU has, and a link beyond the GPU's answers INVALID_ARGUMENT on some drivers."""
    found: list[bool] = []
    for link in range(_MAX_NVLINKS):
        up = reader.call("nvmlDeviceGetNvLinkState", handle, link, then=bool)
        if isinstance(up, dict):
            return found if found else up
        found.append(up)
    return found


def processes(reader: Reader, handle: Any) -> Any:
    names = "nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2"
    found = reader.call(names, handle)
    return found if isinstance(found, dict) else [_process(item) for item in found]


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


def look() -> dict[str, Any]:
    try:
        import pynvml
    except ImportError as error:
        return _nothing(missing("no-tool", "pynvml", str(error), "install nvidia-ml-py"), "NO_BINDING")
    reader = Reader(pynvml)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _nothing(reader.refusal(error, "nvmlInit"), reader.name(error))
    found = {
        "driver_version": reader.call("nvmlSystemGetDriverVersion"),
        "library_version": reader.call("nvmlSystemGetNVMLVersion"),
        "cuda_driver_version": reader.call("nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion", then=_cuda),
    }
    count = reader.call("nvmlDeviceGetCount")
    found["devices"] = count if isinstance(count, dict) else [device(reader, index) for index in range(count)]
    return found


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _nothing(why: dict[str, str], error: str) -> dict[str, Any]:
    facts = ("driver_version", "library_version", "cuda_driver_version", "devices")
    return {**dict.fromkeys(facts, why), "error": error}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look()))
