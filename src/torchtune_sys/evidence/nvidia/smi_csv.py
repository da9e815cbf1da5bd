"""What ``nvidia-smi --query-gpu=… --format=csv`` prints: with or without header and units."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torchtune_sys.formats.nvidia_smi import fields as facts
from torchtune_sys.formats.nvidia_smi import values
from torchtune_sys.model.patterns import pattern

_NAME = pattern(r"[A-Za-z][A-Za-z0-9_.]{0,100}(?: \[[%A-Za-z]{1,5}\])?$")
_COMMAND = pattern(r"--query-gpu[= ]([A-Za-z0-9_.,]{3,20000})[^\n]{0,200}noheader")
_MOST_ROWS, _MOST_GPUS = 20_000, 256

_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "index": ("index", int),
    "name": ("name", str),
    "uuid": ("uuid", str),
    "pci.bus_id": ("pci_address", values.bus_id),
    "compute_cap": ("compute_capability", values.capability),
    "memory.total": ("memory_total_bytes", values.mebibytes),
    "memory.used": ("memory_used_bytes", values.mebibytes),
    "temperature.gpu": ("temperature_c", values.leading_number),
    "temperature.gpu.tlimit": ("temperature_margin_c", values.leading_number),
    "utilization.gpu": ("utilization_pct", values.leading_number),
    "power.limit": ("power_limit_mw", values.milliwatts),
    "enforced.power.limit": ("power_limit_mw", values.milliwatts),
    "power.default_limit": ("power_default_mw", values.milliwatts),
    "power.max_limit": ("power_max_mw", values.milliwatts),
    "clocks.current.sm": ("clock_sm_mhz", values.leading_number),
    "clocks.max.sm": ("clock_sm_max_mhz", values.leading_number),
    "pcie.link.gen.current": ("pcie_gen", values.leading_number),
    "pcie.link.gen.max": ("pcie_gen_max", values.leading_number),
    "pcie.link.gen.gpumax": ("pcie_gen_max", values.leading_number),
    "pcie.link.width.current": ("pcie_width", values.leading_number),
    "pcie.link.width.max": ("pcie_width_max", values.leading_number),
    "persistence_mode": ("persistence", values.on),
    "display_active": ("display", values.on),
    "vbios_version": ("vbios", str),
    "ecc.mode.current": ("ecc", values.on),
    "ecc.mode.pending": ("ecc_pending", values.on),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_volatile", values.count),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_uncorrected_aggregate", values.count),
    "ecc.errors.corrected.volatile.total": ("ecc_corrected_volatile", values.count),
    "ecc.errors.uncorrected.aggregate.sram.thresholdexceeded": ("sram_threshold_exceeded", values.on),
    "retired_pages.single_bit_ecc.count": ("pages_retired_single_bit", values.count),
    "retired_pages.double_bit.count": ("pages_retired_double_bit", values.count),
    "retired_pages.pending": ("pages_retire_pending", values.on),
    "remapped_rows.correctable": ("rows_remapped_correctable", values.count),
    "remapped_rows.uncorrectable": ("rows_remapped_uncorrectable", values.count),
    "remapped_rows.pending": ("rows_remap_pending", values.on),
    "remapped_rows.failure": ("rows_remap_failed", values.on),
    "gpu_recovery_action": ("recovery_action", values.recovery),
    "reset_status.reset_required": ("recovery_action", values.recovery),
    "mig.mode.current": ("mig", values.on),
    "compute_mode": ("compute_mode", values.compute_mode),
    "fabric.state": ("fabric_state", values.fabric_state),
    "fabric.status": ("fabric_status", values.dashed),
    "fabric.cliqueid": ("fabric_clique", values.count),
}
_BETTER = {"power.limit": "enforced.power.limit", "pcie.link.gen.max": "pcie.link.gen.gpumax"}
"""Names of one fact of which the second tells it exactly."""
_OTHERS = ("driver_version", "clocks_event_reasons.", "clocks_throttle_reasons.", "fabric.health.", "inforom.", "remapped_rows.")
_WEAK = frozenset(("index", "name", "uuid"))
"""Names that any table may have for its columns."""
_BANKS = tuple(f"remapped_rows.histogram.{name}" for name in ("max", "high", "partial", "low", "none"))


def parse_csv(text: str) -> tuple[list[dict[str, Any]], str, int]:
    """Return the GPUs, the driver's version or ``""``, and where the last row ends. A GPU's last row counts (``-l 1`` prints one each second).

    >>> parse_csv("index, name, memory.total [MiB], compute_cap\\n0, NVIDIA L4, 23034 MiB, 8.9\\n")[0][0]["compute_capability"]
    [8, 9]
    """
    names: list[str] = []
    rows: dict[Any, dict[str, Any]] = {}
    driver, place, at, seen, read = "", -1, 0, 0, 0
    for line in text[: values.SIZE_LIMIT].splitlines(keepends=True):
        at += len(line)
        words = line.strip().lstrip("> ")
        if len(words) > 20_000 or ("," not in words and "=" not in words):
            names = names if words.startswith("#") else []
            continue
        found = _header(words)
        if found:
            names, seen = found, 0
            continue
        cells = re.split(r", ?", words)
        if len(cells) != len(names):
            continue
        read += 1
        if read > _MOST_ROWS or len(rows) == _MOST_GPUS:
            break
        by_column = dict(zip(names, cells, strict=True))
        gpu = _row(by_column, seen)
        if not _sensible(gpu):
            continue
        rows[gpu.get("uuid") if isinstance(gpu.get("uuid"), str) else gpu["index"]] = gpu
        driver, place, seen = by_column.get("driver_version", driver), at, seen + 1
    return list(rows.values()), driver if driver[:1].isdigit() else "", place


def _header(line: str) -> list[str]:
    """Return the names of the columns, in a header or in a command that prints none."""
    command = _COMMAND.search(line)
    names = command[1].split(",") if command else line.split(", ")
    if len(names) < 2 or not all(map(_NAME.match, names)):
        return []
    plain = [name.partition(" [")[0].lower() for name in names]
    known = [name for name in plain if name in _FIELDS or name.startswith(_OTHERS)]
    return plain if len(known) > 1 and not _WEAK.issuperset(known) else []


def _row(by_column: dict[str, str], number: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in by_column.items():
        if name in _FIELDS:
            fact, read = _FIELDS[name]
            value = values.convert(read, cell)
            better = _BETTER.get(name)
            if better is None or better not in by_column:
                found[fact] = value
    if not isinstance(found.get("index"), int) or not 0 <= found["index"] < 10_000:
        found["index"] = number
    if set(_BANKS) <= by_column.keys():
        found["row_banks"] = facts.together([values.convert(values.count, by_column[name]) for name in _BANKS])
    if "inforom.checksum_validation" in by_column:
        found["inforom_valid"] = values.convert(_valid, by_column["inforom.checksum_validation"])
    health = {name.removeprefix("fabric.health."): cell for name, cell in by_column.items() if name.startswith("fabric.health.")}
    found["fabric_health"] = facts.fabric_health({name: cell for name, cell in health.items() if name != "summary"})
    found["clock_event_reasons"] = _reasons(by_column)
    found["lost"] = any(map(values.lost, by_column.values()))
    found["reset_required"] = any(map(values.reset_required, by_column.values()))
    return found


def _sensible(gpu: dict[str, Any]) -> bool:
    """Not some other line with as many commas."""
    unparsed = [value for value in gpu.values() if isinstance(value, dict) and value["$missing"] == "unparsed"]
    return 3 * len(unparsed) < len(gpu.keys() - {"reset_required"})


def _valid(text: str) -> bool:
    return {"valid": True, "invalid": False}[text.lower()]


def _reasons(by_column: dict[str, str]) -> Any:
    """As a mask, which the mask of the supported ones belongs to, or one by one."""
    parts: dict[str, str] = {}
    for name, cell in by_column.items():
        section, _, reason = name.partition(".")
        if section in ("clocks_event_reasons", "clocks_throttle_reasons"):
            parts[reason] = cell
    if "active" not in parts:
        return facts.clock_reasons(parts)
    mask = values.convert(_hex, parts["active"])
    supported = values.convert(_hex, parts.get("supported", ""))
    return mask & supported if isinstance(mask, int) and isinstance(supported, int) else mask


def _hex(text: str) -> int:
    return int(text, 16)
