"""What ``nvidia-smi -q`` prints, as XML and as text, in the shape of ``model.facts.gpu.GpuFacts``.

Both forms say the same under other labels, which moreover changed with the schema versions (v10 … v13), so each fact has a list of
places where it may stand. It lives in ``host`` because the tool itself falls back on nvidia-smi where NVML's library cannot be loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIZE_LIMIT = 16 << 20
"""Characters; a node with 16 GPUs prints about 1 MB."""
SOURCE = "nvidia-smi"
Paths = dict[str, str]


def parse_xml(text: str) -> dict[str, Any] | None:
    """The facts in the first ``nvidia-smi -q -x`` log of ``text``; None if there is no whole one.

    >>> found = parse_xml("<nvidia_smi_log><driver_version>580.95.05</driver_version><gpu id='00000000:18:00.0'>"
    ...                   "<product_name>NVIDIA L4</product_name></gpu></nvidia_smi_log>")
    >>> found["driver_version"], found["devices"][0]["name"], found["devices"][0]["pci_address"]
    ('580.95.05', 'NVIDIA L4', '0000:18:00.0')
    """
    first, last = text.find("<nvidia_smi_log"), text.find("</nvidia_smi_log>")
    if first < 0 or last < first or last > SIZE_LIMIT:
        return None
    from xml.etree import ElementTree

    body = text[first:last] + "</nvidia_smi_log>"
    if "<!" in body:  # neither declarations nor entities occur inside a log
        return None
    try:
        root = ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError, RecursionError):
        return None
    devices = []
    for index, gpu in enumerate(root.findall("gpu")):
        paths: Paths = {"id": gpu.get("id", "")}
        _flatten(gpu, "", paths)
        listed = [{child.tag: (child.text or "").strip() for child in item} for item in gpu.iterfind("processes/process_info")]
        devices.append(_device(index, paths, listed if gpu.find("processes") is not None else None))
    return _log(root.findtext("driver_version"), root.findtext("cuda_version"), devices)


def _flatten(element: Any, prefix: str, paths: Paths) -> None:
    for child in element:
        place = f"{prefix}/{child.tag}" if prefix else child.tag
        if len(child) and place.count("/") < 6 and child.tag not in ("supported_clocks", "processes", "mig_devices"):
            _flatten(child, place, paths)
        else:
            paths.setdefault(place, (child.text or "").strip())


def parse_query(text: str) -> dict[str, Any] | None:
    """The facts in the first ``nvidia-smi -q`` log of ``text``; None if there is none.

    >>> parse_query("==============NVSMI LOG==============\\nDriver Version  : 535.54.03\\nCUDA Version : 12.2\\n"
    ...             "GPU 00000000:83:00.0\\n    Product Name   : NVIDIA H200\\n    FB Memory Usage\\n        Total : 143771 MiB\\n"
    ...            )["devices"][0]["memory_total_bytes"]
    150754820096
    """
    _, marker, rest = text[:SIZE_LIMIT].partition("NVSMI LOG==")
    if not marker:
        return None
    rest = rest.partition("NVSMI LOG==")[0]
    head: Paths = {}
    blocks: list[tuple[Paths, list[Paths] | None]] = []
    stack: list[tuple[int, str]] = []
    for line in rest.splitlines()[1:]:
        if line.startswith("GPU ") and ":" in line and " : " not in line:
            blocks.append(({"id": line[4:].strip()}, None))
            stack = []
        elif not blocks:
            label, colon, value = line.partition(" : ")
            if colon:
                head.setdefault(label.strip().lower(), value.strip())
        else:
            if line[:4] in ("####", "+---", "====") or line[:2] == "$ ":
                break  # another command's output in the same paste
            blocks[-1] = _query_line(line, blocks[-1], stack)
    devices = [_device(index, paths, listed) for index, (paths, listed) in enumerate(blocks)]
    return _log(head.get("driver version"), head.get("cuda version"), devices)


def _query_line(
    line: str, block: tuple[Paths, list[Paths] | None], stack: list[tuple[int, str]]
) -> tuple[Paths, list[Paths] | None]:
    paths, listed = block
    label, colon, value = line.partition(" : ")
    name, depth = label.strip().lower(), len(line) - len(line.lstrip())
    if not name or (depth == 0 and not colon):
        return block
    while stack and stack[-1][0] >= depth:
        stack.pop()
    place = "/".join([part for _, part in stack] + [name])
    stack.append((depth, name))
    if name == "processes":
        listed = []
    if name == "process id" and listed is not None:
        listed.append({})
    if listed and name in _PROCESS_LABELS:
        listed[-1][_PROCESS_LABELS[name]] = value.strip()
    elif colon:
        paths.setdefault(place, value.strip())
    return paths, listed


_PROCESS_LABELS = {"process id": "pid", "type": "type", "name": "process_name", "used gpu memory": "used_memory"}


def _log(driver: str | None, cuda: str | None, devices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "driver_version": driver.strip() if driver else missing("not-recorded", "not in the output"),
        "cuda_driver_version": _cuda(cuda),
        "devices": devices,
        "source": SOURCE,
    }


def _cuda(text: str | None) -> Any:
    words = (text or "").strip()
    if words.replace(".", "").isdigit():
        return words
    return missing("not-supported" if words else "not-recorded", words or "not in the output")


def _device(index: int, paths: Paths, listed: list[Paths] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"index": index}
    for fact, read, places in _FACTS:
        text = next((paths[place] for place in places if place in paths), None)
        found[fact] = missing("not-recorded", "not in the output") if text is None else convert(read, text)
    found["clock_event_reasons"] = _reasons(paths)
    found["ecc_uncorrected_volatile"] = _uncorrected(paths)
    if listed is not None:
        found["processes"] = [item for item in map(_process, listed) if item is not None]
    found["lost"] = any(words in text.lower() for text in paths.values() for words in ("gpu is lost", "gpu requires reset"))
    return found


def convert(read: Callable[[str], Any], text: str) -> Any:
    """``read(text)``, or the missing fact that nvidia-smi's words stand for (``[N/A]``, ``ERR!``, ``[Insufficient Permissions]``).

    >>> convert(int, "7"), convert(int, "[N/A]")["$missing"], convert(int, "ERR!")["$missing"], convert(int, "x")["$missing"]
    (7, 'not-supported', 'failed', 'unparsed')
    """
    words = text.strip().strip("[]").strip()
    low = words.lower()
    if low in ("n/a", "not supported", "not available", "") or "deprecated" in low or "not found" in low:
        return missing("not-supported", words or "empty")
    if "permission" in low:
        return missing("denied", words, "run as root")
    if "err!" in low or "unknown error" in low or "is lost" in low or "requires reset" in low:
        return missing("failed", words)
    try:
        return read(words)
    except (ValueError, KeyError, OverflowError) as error:
        return missing("unparsed", f"{words[:60]!r}: {error}")


def missing(why: str, detail: str, remedy: str = "") -> dict[str, str]:
    """A missing fact in JSON."""
    found = {"$missing": why, "source": SOURCE, "detail": detail}
    return {**found, "remedy": remedy} if remedy else found


def bus_id(text: str) -> str:
    """``00000000:0C:00.0`` → ``0000:0c:00.0``; also ``0000:0C:00.0`` and ``0C:00.0`` of old versions."""
    domain, _, rest = text.strip().lower().rpartition(":")[0].rpartition(":")
    device = text.strip().lower().rpartition(":")[2]
    if len(rest) != 2 or len(device) != 4 or device[2] != ".":
        raise ValueError("not a PCI address")
    return f"{int(domain or '0', 16):04x}:{int(rest, 16):02x}:{device}"


def mebibytes(text: str) -> int:
    number, _, unit = text.partition(" ")
    if unit not in ("MiB", "MB", ""):
        raise ValueError("not MiB")
    return int(number) << 20


def milliwatts(text: str) -> int:
    return round(float(text.removesuffix("W").strip()) * 1000)


def leading_number(text: str) -> int:
    """``28 C``, ``16x``, ``0 %`` → the number."""
    return int(text.split()[0].rstrip("xC%"))


def _on(text: str) -> bool:
    return {"enabled": True, "disabled": False, "on": True, "off": False, "yes": True, "no": False}[text.lower()]


def compute_mode(text: str) -> str:
    """``E. Process`` is how tables cut it."""
    words = text.lower().replace("_", "-").replace(" ", "-")
    known = {"e.-process": "exclusive-process", "e.-thread": "exclusive-thread", "prohibited": "prohibited"}
    short = known.get(words, words)
    if short not in ("default", "exclusive-process", "exclusive-thread", "prohibited"):
        raise ValueError("not a compute mode")
    return short


def _architecture(text: str) -> str:
    """nvidia-smi says ``Ada Lovelace``."""
    return text.split()[0]


def _recovery(text: str) -> str:
    words = text.lower().replace(" ", "-")
    return {"reset": "gpu-reset", "drain-and-reset": "drain-and-reset", "no": "none", "yes": "gpu-reset"}.get(words, words)


def _fabric(text: str) -> str:
    return text.lower().replace(" ", "-")


_FACTS: tuple[tuple[str, Callable[[str], Any], tuple[str, ...]], ...] = (
    ("name", str, ("product_name", "product name")),
    ("uuid", str, ("uuid", "gpu uuid")),
    ("pci_address", bus_id, ("id",)),
    ("architecture", _architecture, ("product_architecture", "product architecture")),
    ("memory_total_bytes", mebibytes, ("fb_memory_usage/total", "fb memory usage/total")),
    ("memory_used_bytes", mebibytes, ("fb_memory_usage/used", "fb memory usage/used")),
    ("temperature_c", leading_number, ("temperature/gpu_temp", "temperature/gpu current temp")),
    ("utilization_pct", leading_number, ("utilization/gpu_util", "utilization/gpu")),
    (
        "power_limit_mw",
        milliwatts,
        (
            "power_readings/enforced_power_limit",
            "gpu_power_readings/current_power_limit",
            "power_readings/power_limit",
            "power readings/enforced power limit",
            "gpu power readings/current power limit",
            "power readings/power limit",
        ),
    ),
    (
        "power_default_mw",
        milliwatts,
        (
            "gpu_power_readings/default_power_limit",
            "power_readings/default_power_limit",
            "gpu power readings/default power limit",
            "power readings/default power limit",
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
        ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen", "pci/gpu link info/pcie generation/device max"),
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
    ("persistence", _on, ("persistence_mode", "persistence mode")),
    ("display", _on, ("display_active", "display active")),
    ("ecc", _on, ("ecc_mode/current_ecc", "ecc mode/current")),
    (
        "rows_remap_pending",
        _on,
        ("remapped_rows/remapped_row_pending", "remapped rows/pending", "remapped_rows", "remapped rows"),
    ),
    (
        "rows_remap_failed",
        _on,
        ("remapped_rows/remapped_row_failure", "remapped rows/remapping failure occurred", "remapped_rows", "remapped rows"),
    ),
    (
        "pages_retire_pending",
        _on,
        (
            "retired_pages/pending_retirement",
            "retired_pages/pending_blacklist",
            "retired pages/pending page blacklist",
            "retired pages/pending",
        ),
    ),
    (
        "recovery_action",
        _recovery,
        ("gpu_recovery_action", "gpu recovery action", "gpu_reset_status/reset_required", "gpu reset status/reset required"),
    ),
    ("mig", _on, ("mig_mode/current_mig", "mig mode/current")),
    ("compute_mode", compute_mode, ("compute_mode", "compute mode")),
    ("fabric_state", _fabric, ("fabric/state",)),
)

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
    """The bit mask of the active reasons; the counters beside them have names that end alike."""
    mask, seen, refused = 0, False, False
    for place, text in paths.items():
        section, _, name = place.replace(" ", "_").partition("/")
        if section not in ("clocks_event_reasons", "clocks_throttle_reasons"):
            continue
        name = name.rpartition("/")[2]
        name = "gpu_idle" if name == "idle" else name
        for ending, bit in _BITS:
            if name.endswith(ending):
                seen = seen or text in ("Active", "Not Active")
                refused = True
                mask |= bit if text == "Active" else 0
    if seen:
        return mask
    return missing("not-supported", "N/A") if refused else missing("not-recorded", "not in the output")


def _uncorrected(paths: Paths) -> Any:
    """Uncorrected volatile errors: totals of old versions, or the parts of newer ones."""
    numbers: list[Any] = []
    for place, text in paths.items():
        flat = place.replace(" ", "_")
        if not flat.startswith("ecc_errors/volatile/"):
            continue
        name = flat.removeprefix("ecc_errors/volatile/")
        if name == "double_bit/total" or (name[:5] in ("sram_", "dram_") and name[5:].startswith("uncorrectable")):
            numbers.append(convert(int, text))
    counts = [number for number in numbers if isinstance(number, int)]
    if counts:
        return sum(counts)
    return numbers[0] if numbers else missing("not-recorded", "not in the output")


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
