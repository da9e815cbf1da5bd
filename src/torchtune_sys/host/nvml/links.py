"""Read the connections between GPUs from NVML: NVLinks, the NVSwitch fabric, peer access."""

from __future__ import annotations

from typing import Any

from torchtune_sys.host.nvml.calls import TELLS, NvmlCalls, missing, refused

_FABRIC = ("not-supported", "not-started", "in-progress", "completed")
_HEALTH = ((0, "degraded bandwidth"), (2, "route recovery in progress"), (4, "route unhealthy"), (6, "access timeout recovery"))
_CONFIGURATION = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}
_MAX_NVLINKS = 36
_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data")
"""NVML_NVLINK_ERROR_DL_REPLAY (0), _RECOVERY, _CRC_FLIT, _CRC_DATA."""
_RECOVERED, _NOT_RECOVERED = 213, 214
"""NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS and _FAILED_EVENTS: NVLink 5 has these instead of the counters."""
_P2P = ("ok", "chipset-not-supported", "gpu-not-supported", "topology-not-supported", "disabled-by-regkey", "not-supported", "unknown")  # fmt: skip
_CAPABILITIES = (("read", 0), ("write", 1), ("nvlink", 2))


def fabric(reader: NvmlCalls, handle: Any) -> Any:
    """Return state, status, clique, health, whether it spans hosts. Version 2 of the structure came with R550; before, there is a call without versions (R530)."""
    call = "nvmlDeviceGetGpuFabricInfoV"
    answer = reader.fill(call, "c_nvmlGpuFabricInfo_v2_t", handle, lambda found: _fabric(reader, found, call))
    if refused(answer) and answer["detail"] == TELLS["FUNCTION_NOT_FOUND"]:
        call = "nvmlDeviceGetGpuFabricInfo"
        return reader.fill(call, "c_nvmlGpuFabricInfo_t", handle, lambda found: _fabric(reader, found, call))
    return answer


def _fabric(reader: NvmlCalls, found: Any, call: str) -> Any:
    state = _FABRIC[found.state]
    if state != "completed":  # the rest is not valid before
        none = missing("absent", call, f"the fabric's state is {state}")
        return state, none, none, none, none
    status = "success" if found.status == 0 else reader.name(reader.nvml.NVMLError(found.status)).lower().replace("_", "-")
    mask = getattr(found, "healthMask", None)
    health: Any = health_words(mask) if mask is not None else missing("not-supported", call, TELLS["ARGUMENT_VERSION_MISMATCH"])
    return state, status, found.cliqueId, health, any(bytes(found.clusterUuid))


def health_words(mask: int) -> list[str]:
    """Return what a health mask complains of: in each two bits 0 is not supported, 1 true, 2 false.

    >>> health_words(0x0), health_words(0x1aa), health_words(0x1a9), health_words(0x5aa)
    ([], [], ['degraded bandwidth'], ['too few NVLinks'])
    """
    words = [name for shift, name in _HEALTH if mask >> shift & 3 == 1]
    configuration = mask >> 8 & 0xF
    if configuration > 1:
        words.append(_CONFIGURATION.get(configuration, f"incorrect configuration {configuration}"))
    return words


def nvlinks(reader: NvmlCalls, handle: Any) -> Any:
    """Return how many links there are, which are down, their version, their errors. NOT_SUPPORTED on link 0 means no NVLink, on link k that there are k links; the
    number of links that the header allows (36) exceeds what any GPU has, and a link beyond the GPU's answers INVALID_ARGUMENT on some
    drivers."""
    found: list[bool] = []
    for link in range(_MAX_NVLINKS):
        up = reader.call("nvmlDeviceGetNvLinkState", handle, link, then=bool)
        if refused(up):
            if not found:
                return up
            break
        found.append(up)
    down = [link for link, up in enumerate(found) if not up]
    active = [link for link, up in enumerate(found) if up]
    if not active:
        none = missing("absent", "nvmlDeviceGetNvLinkErrorCounter", "no link is up")
        return len(found), down, none, none
    return len(found), down, reader.call("nvmlDeviceGetNvLinkVersion", handle, active[0]), _errors(reader, handle, active)


def _errors(reader: NvmlCalls, handle: Any, links: list[int]) -> Any:
    """Return the links that have counted errors."""
    found: list[dict[str, int]] = []
    for link in links:
        counts: dict[str, int] = {}
        for number, name in enumerate(_COUNTERS):
            count = reader.call("nvmlDeviceGetNvLinkErrorCounter", handle, link, number)
            if refused(count):
                return _recoveries(reader, handle, links) if count["$missing"] == "not-supported" else count
            counts[name] = count
        if any(counts.values()):
            found.append({"link": link, **counts})
    return found


def _recoveries(reader: NvmlCalls, handle: Any, links: list[int]) -> Any:
    found: list[dict[str, int]] = []
    for link in links:
        recovered = reader.field(handle, _RECOVERED, int, link)
        failed = reader.field(handle, _NOT_RECOVERED, int, link)
        if refused(recovered) or refused(failed):
            return recovered if refused(recovered) else failed
        if recovered or failed:
            found.append({"link": link, "recovery": recovered, "recovery_failed": failed})
    return found


def peers(reader: NvmlCalls, handles: dict[int, Any], first: int) -> list[dict[str, Any]]:
    """Return what GPU ``first`` and each one after it may do with each other's memory."""
    found: list[dict[str, Any]] = []
    for second in sorted(handles):
        if second > first:
            pair: dict[str, Any] = {"first": first, "second": second}
            for name, number in _CAPABILITIES:
                pair[name] = reader.call(
                    "nvmlDeviceGetP2PStatus", handles[first], handles[second], number, then=lambda status: _P2P[status]
                )
            found.append(pair)
    return found
