"""Map the fields of ``nvidia-smi -q``, in XML and text, to ``model.facts.gpu.Gpu``.

Both forms say the same under other labels, which moreover changed with the schema versions (v10 … v13), so each fact has a list of
places where it may stand: the path of XML tags, or of labels in lower case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtune_sys.formats.nvidia_smi.values import (
    NOT_REPORTED,
    architecture,
    bus_id,
    cluster,
    compute_mode,
    convert,
    count,
    dashed,
    fabric_state,
    is_reported,
    leading_number,
    licensed,
    lost,
    mebibytes,
    milliwatts,
    missing,
    on,
    recovery,
    reset_required,
    virtualization,
)

Paths = dict[str, str]


def device(index: int, paths: Paths, listed: list[Paths] | None) -> dict[str, Any]:
    """Return the GPU of which ``paths`` is all that was printed; ``listed``: its processes, None where they were not asked for."""
    found: dict[str, Any] = {"index": index}
    for fact, read, places in _FACTS:
        found[fact] = _first(paths, places, read)
    found["recovery_action"] = _recovery(paths)
    found["clock_event_reasons"] = _reasons(paths)
    found["slowed_by_hardware_s"] = _slowed(paths)
    for fact, span, kind in _ECC:
        found[fact] = ecc_errors(paths, span, kind)
    found["row_banks"] = together([_first(paths, places, count) for places in _BANKS])
    found["repair_pending"] = either([_first(paths, places, on) for places in _REPAIRS])
    found["fabric_health"] = fabric_health(
        {name: paths[place] for name, places in _HEALTH.items() for place in places if place in paths}
    )
    found["processes"] = _processes(paths, listed)
    found["lost"] = any(map(lost, paths.values()))
    found["reset_required"] = any(map(reset_required, paths.values()))
    return found


def _first(paths: Paths, places: tuple[str, ...], read: Callable[[str], Any]) -> Any:
    text = next((paths[place] for place in places if place in paths), None)
    return NOT_REPORTED if text is None else convert(read, text)


def together(parts: list[Any]) -> Any:
    """Return all the parts, or the first one's reason why there are none."""
    return next((part for part in parts if isinstance(part, dict)), parts)


def either(parts: list[Any]) -> Any:
    """Return whether one of several things is so; parts that are not told or not supported do not count beside others that are."""
    if True in parts:
        return True
    known = [part for part in parts if isinstance(part, bool)]
    failed = [part for part in parts if isinstance(part, dict) and part["$missing"] not in ("not-supported", "not-recorded")]
    return failed[0] if failed else False if known else next(filter(is_reported, parts), NOT_REPORTED)


def _recovery(paths: Paths) -> Any:
    """R570 and later name an action; R525 to R565 say whether a reset is required, and whether a drain with a reset is recommended."""
    named = _first(paths, ("gpu_recovery_action", "gpu recovery action"), recovery)
    if is_reported(named):
        return named
    required = _first(paths, ("gpu_reset_status/reset_required", "gpu reset status/reset required"), on)
    places = ("gpu_reset_status/drain_and_reset_recommended", "gpu reset status/drain and reset recommended")
    drain = _first(paths, places, on)
    if required is True or drain is True:
        return "gpu-reset" if required is True else "drain-and-reset"
    return required if isinstance(required, dict) else "none"


_FACTS: tuple[tuple[str, Callable[[str], Any], tuple[str, ...]], ...] = (
    ("name", str, ("product_name", "product name")),
    ("uuid", str, ("uuid", "gpu uuid")),
    ("pci_address", bus_id, ("id",)),
    ("architecture", architecture, ("product_architecture", "product architecture")),
    ("memory_total_bytes", mebibytes, ("fb_memory_usage/total", "fb memory usage/total")),
    ("memory_used_bytes", mebibytes, ("fb_memory_usage/used", "fb memory usage/used")),
    ("bar1_total_bytes", mebibytes, ("bar1_memory_usage/total", "bar1 memory usage/total")),
    ("temperature_c", leading_number, ("temperature/gpu_temp", "temperature/gpu current temp")),
    ("temperature_margin_c", leading_number, ("temperature/gpu_temp_tlimit", "temperature/gpu t.limit temp")),
    (
        "temperature_operating_c",
        leading_number,
        ("temperature/gpu_temp_max_gpu_threshold", "temperature/gpu max operating temp"),
    ),
    ("clock_sm_mhz", leading_number, ("clocks/sm_clock", "clocks/sm")),
    ("clock_sm_max_mhz", leading_number, ("max_clocks/sm_clock", "max clocks/sm")),
    ("clock_application_mhz", leading_number, ("applications_clocks/graphics_clock", "applications clocks/graphics")),
    (
        "clock_application_default_mhz",
        leading_number,
        ("default_applications_clocks/graphics_clock", "default applications clocks/graphics"),
    ),
    ("temperature_slowdown_c", leading_number, ("temperature/gpu_temp_slow_threshold", "temperature/gpu slowdown temp")),
    ("temperature_shutdown_c", leading_number, ("temperature/gpu_temp_max_threshold", "temperature/gpu shutdown temp")),
    ("utilization_pct", leading_number, ("utilization/gpu_util", "utilization/gpu")),
    (
        "power_limit_mw",
        milliwatts,
        (
            *("power_readings/enforced_power_limit", "gpu_power_readings/current_power_limit", "power_readings/power_limit"),
            *("power readings/enforced power limit", "gpu power readings/current power limit", "power readings/power limit"),
        ),
    ),
    (
        "power_default_mw",
        milliwatts,
        (
            *("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
            *("gpu power readings/default power limit", "power readings/default power limit"),
        ),
    ),
    (
        "power_max_mw",
        milliwatts,
        (
            *("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
            *("gpu power readings/max power limit", "power readings/max power limit"),
        ),
    ),
    (
        "pcie_gen",
        leading_number,
        ("pci/pci_gpu_link_info/pcie_gen/current_link_gen", "pci/gpu link info/pcie generation/current"),
    ),
    (
        "pcie_gen_max",
        leading_number,
        (
            "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
            "pci/gpu link info/pcie generation/device max",
            "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
            "pci/gpu link info/pcie generation/max",
        ),
    ),
    (
        "pcie_width",
        leading_number,
        ("pci/pci_gpu_link_info/link_widths/current_link_width", "pci/gpu link info/link width/current"),
    ),
    (
        "pcie_width_max",
        leading_number,
        ("pci/pci_gpu_link_info/link_widths/max_link_width", "pci/gpu link info/link width/max"),
    ),
    ("pcie_replays", count, ("pci/replay_counter", "pci/replays since reset")),
    ("persistence", on, ("persistence_mode", "persistence mode")),
    ("display", on, ("display_active", "display active")),
    ("vbios", str, ("vbios_version", "vbios version")),
    ("gsp_firmware", str, ("gsp_firmware_version", "gsp firmware version")),
    (
        "virtualization",
        virtualization,
        ("gpu_virtualization_mode/virtualization_mode", "gpu virtualization mode/virtualization mode"),
    ),
    (
        "licensed",
        licensed,
        (
            "vgpu_software_licensed_product/license_status",
            "vgpu software licensed product/license status",
            "grid_licensed_product/license_status",
            "grid licensed product/license status",
        ),
    ),
    ("ecc", on, ("ecc_mode/current_ecc", "ecc mode/current")),
    ("ecc_pending", on, ("ecc_mode/pending_ecc", "ecc mode/pending")),
    (
        "sram_threshold_exceeded",
        on,
        ("ecc_errors/aggregate/sram_threshold_exceeded", "ecc errors/aggregate/sram threshold exceeded"),
    ),
    (
        "rows_remapped_correctable",
        count,
        ("remapped_rows/remapped_row_corr", "remapped rows/correctable error", "remapped_rows", "remapped rows"),
    ),
    (
        "rows_remapped_uncorrectable",
        count,
        ("remapped_rows/remapped_row_unc", "remapped rows/uncorrectable error", "remapped_rows", "remapped rows"),
    ),
    (
        "rows_remap_pending",
        on,
        ("remapped_rows/remapped_row_pending", "remapped rows/pending", "remapped_rows", "remapped rows"),
    ),
    (
        "rows_remap_failed",
        on,
        ("remapped_rows/remapped_row_failure", "remapped rows/remapping failure occurred", "remapped_rows", "remapped rows"),
    ),
    (
        "pages_retired_single_bit",
        count,
        ("retired_pages/multiple_single_bit_retirement/retired_count", "retired pages/single bit ecc"),
    ),
    (
        "pages_retired_double_bit",
        count,
        ("retired_pages/double_bit_retirement/retired_count", "retired pages/double bit ecc"),
    ),
    (
        "pages_retire_pending",
        on,
        (
            "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist",
            "retired pages/pending page blacklist",
            "retired pages/pending",
        ),
    ),
    ("mig", on, ("mig_mode/current_mig", "mig mode/current")),
    ("mig_instances", count, ("mig_devices/#", "mig device/#")),
    ("compute_mode", compute_mode, ("compute_mode", "compute mode")),
    ("fabric_state", fabric_state, ("fabric/state",)),
    ("fabric_status", dashed, ("fabric/status",)),
    ("fabric_clique", count, ("fabric/cliqueId", "fabric/cliqueid")),
    ("fabric_of_hosts", cluster, ("fabric/clusterUuid", "fabric/clusteruuid")),
)

_BANKS = tuple(
    (
        f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{name}",
        f"remapped rows/bank remap availability histogram/{name}",
        "remapped_rows/row_remapper_histogram",
        "remapped rows/bank remap availability histogram",
        "remapped_rows",
        "remapped rows",
    )
    for name in ("max", "high", "partial", "low", "none")
)
_REPAIRS = tuple((f"ecc_errors/{name}_repair_pending", f"ecc errors/{name} repair pending") for name in ("channel", "tpc"))
_HEALTH = {
    name: (f"fabric/health/{name}", f"fabric/health/{label}")
    for name, label in (
        ("bandwidth", "bandwidth"),
        ("route_recovery_in_progress", "route recovery in progress"),
        ("route_unhealthy", "route unhealthy"),
        ("access_timeout_recovery", "access timeout recovery"),
        ("incorrect_configuration", "incorrect configuration"),
    )
}
_COMPLAINTS = {
    "route_recovery_in_progress": "route recovery in progress",
    "route_unhealthy": "route unhealthy",
    "access_timeout_recovery": "access timeout recovery",
}


def fabric_health(words: dict[str, str]) -> Any:
    """Return what the parts of the fabric's health complain of, in the words of ``host.nvml_links.health_words``.

    >>> fabric_health({"bandwidth": "Degraded", "route_unhealthy": "False", "incorrect_configuration": "None"})
    ['degraded bandwidth']
    """
    parts = {name: convert(str.lower, text) for name, text in words.items()}
    known = {name: part for name, part in parts.items() if isinstance(part, str)}
    if not known:
        return next(iter(parts.values()), NOT_REPORTED)
    found = ["degraded bandwidth"] if known.get("bandwidth") in ("degraded", "true") else []
    found += [complaint for name, complaint in _COMPLAINTS.items() if known.get(name) == "true"]
    configuration = known.get("incorrect_configuration", "none")
    if configuration not in ("none", "false"):
        found.append("incorrect configuration" if configuration == "true" else configuration.replace("_", " "))
    return found


_BITS = (  # ends of XML tags and text labels → bit (nvml.h)
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clocks_setting", 0x100),
    ("display_clock_setting", 0x100),
)


def _reasons(paths: Paths) -> Any:
    """Return the bit mask of the active reasons; the counters beside them have names that end alike."""
    words: dict[str, str] = {}
    for place, text in paths.items():
        section, _, name = place.replace(" ", "_").partition("/")
        if section in ("clocks_event_reasons", "clocks_throttle_reasons"):
            name = name.rpartition("/")[2]
            words["gpu_idle" if name == "idle" else name] = text
    return clock_reasons(words)


_COUNTERS = ("hw_thermal_slowdown", "hw_power_brak")


def _slowed(paths: Paths) -> Any:
    """Seconds for which hardware lowered the clocks, of the counters in microseconds (``Clocks Event Reasons Counters``, R570 and later)."""
    parts = [
        convert(leading_number, text)
        for place, text in paths.items()
        if place.replace(" ", "_").startswith("clocks_event_reasons_counters/")
        and any(n in place.replace(" ", "_") for n in _COUNTERS)
    ]
    added = total(parts)
    return added / 1e6 if isinstance(added, int) else added


def clock_reasons(words: dict[str, str]) -> Any:
    """Return the mask of the reasons that are called ``Active``, by names that end as NVML's do."""
    mask, seen, named = 0, False, ""
    for name, text in words.items():
        for ending, bit in _BITS:
            if name.endswith(ending):
                seen = seen or text in ("Active", "Not Active")
                named = text
                mask |= bit if text == "Active" else 0
    if seen:
        return mask
    return convert(int, named) if named else NOT_REPORTED


_ECC = (
    ("ecc_uncorrected_volatile", "volatile", "uncorrectable"),
    ("ecc_uncorrected_aggregate", "aggregate", "uncorrectable"),
    ("ecc_corrected_volatile", "volatile", "correctable"),
)


def ecc_errors(paths: Paths, span: str, kind: str) -> Any:
    """Return the errors of one kind: totals of GPUs before Turing, or the parts of later ones (SRAM in one row or by parity and SEC-DED, DRAM)."""
    old = "double_bit/total" if kind == "uncorrectable" else "single_bit/total"
    numbers: list[Any] = []
    for place, text in paths.items():
        flat = place.replace(" ", "_")
        if not flat.startswith(f"ecc_errors/{span}/"):
            continue
        name = flat.removeprefix(f"ecc_errors/{span}/")
        if name == old or (name[:5] in ("sram_", "dram_") and name[5:].startswith(kind)):
            numbers.append(convert(count, text))
    return total(numbers)


def total(numbers: list[Any]) -> Any:
    """Return the sum of the parts. Without any error, a part that could not be read leaves it open whether there is none.

    >>> total([0, 2, missing("failed", "ERR!")]), total([0, missing("failed", "ERR!")])["detail"], total([0, missing("not-supported", "N/A")])
    (2, 'ERR!', 0)
    """
    counts = [number for number in numbers if isinstance(number, int)]
    if sum(counts):
        return sum(counts)
    failed = [
        number
        for number in numbers
        if not isinstance(number, int) and number["$missing"] not in ("not-supported", "not-recorded")
    ]
    return failed[0] if failed else 0 if counts else next(iter(numbers), NOT_REPORTED)


def _processes(paths: Paths, listed: list[Paths] | None) -> Any:
    refusal = paths.get("processes", "")
    if not listed and refusal and refusal != "None":
        return convert(str, refusal) if isinstance(convert(str, refusal), dict) else missing("unparsed", refusal[:60])
    if listed is None:
        return NOT_REPORTED
    return [item for item in map(_process, listed) if item is not None]


def _process(item: Paths) -> dict[str, Any] | None:
    if "C" not in item.get("type", "C"):
        return None  # graphics
    pid = convert(int, item.get("pid", ""))
    if not isinstance(pid, int):
        return None
    return {
        "pid": pid,
        "name": convert(str, item.get("process_name", "")),
        "used_bytes": convert(mebibytes, item.get("used_memory", "")),
    }
