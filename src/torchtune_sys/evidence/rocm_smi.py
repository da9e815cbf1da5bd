"""AMD GPUs as ``rocm-smi`` (table, long form, JSON; ROCm 3 to 7) and ``amd-smi`` (table, ``static``, ``metric``, ``list``) print them, and
``rocminfo``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from torchtune_sys.knowledge.install_rocm import gpu as by_device
from torchtune_sys.model import codec
from torchtune_sys.model.facts.driver import AmdErrors
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import known

Found = dict[int, dict[str, Any]]
"""GPU → what is told of it: fields of ``Gpu``, and ``uncorrected``, errors counted."""
_MOST = 1024
"""GPUs of a report: a host with eight MI300X in CPX mode has 64."""

# rocm_smi.py: showAllConcise. "GPU Temp (DieEdge) AvgPwr …" until ROCm 5.7, "Device [Model : Revision] …" in 6.0, "Device Node IDs (DID, GUID) …" since 6.1
_TITLE = pattern(r"^ {0,12}(?:GPU|Device) {1,8}\S[^\n]{0,120}\bVRAM% +GPU%", re.MULTILINE)
_ROW = pattern(r"^ {0,12}(\d{1,4}) {2,}(\S[^\n]{20,200})$")
_ENDS = pattern(r".* (?P<cap>\S{3,16}) +(?P<vram>\d{1,3}%|N/A|Unsupported) +(?P<use>\d{1,3}%|N/A|Unsupported)(?: |$)")
_DEGREES = pattern(r"(\d{1,3})\.\d{1,2}[^\s\dW%]{0,3}[cC]\b")
_NAMED = pattern(r"^ {4,24}([A-Z][\w./() -]{2,40}?) *$")
"""Below its row in ROCm 6.0."""

# showHwInfo
_HARDWARE = pattern(
    r"^ {0,4}(\d{1,4}) +\d{1,4} +(0x[0-9a-f]{4}) +\d+ +gfx\d\w* [^\n]{0,120}?([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\b",
    re.MULTILINE,
)

_FIELD = pattern(r"^GPU\[(\d{1,4})\]\s{0,12}: ([^:\n]{2,60}): {0,4}\t{0,3} ?([^\n]{1,120})$", re.MULTILINE)
_CARD = pattern(r'"card(\d{1,4})"\s?:\s?\{([^{}]{1,20000})\}')
_PAIR = pattern(r'"([^"\n]{2,60}?):?"\s?:\s?"([^"\n]{0,120})"')

# amdsmi_cli: the table of plain amd-smi since ROCm 7.0, two lines for each GPU; before it "GPU: 0" and indented names
_FIRST = pattern(
    r"\| *(?P<bdf>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) +(?P<name>\S[^|\n]{0,40}?) *\|"
    r" *(?:N/A|\d+ ?%) +(?:N/A|(?P<degrees>\d{1,3}) ?\S{0,4}C) +(?P<ue>N/A|\d{1,9}) +(?P<power>[^|\n]{1,24}?) *\|"
)
_SECOND = pattern(
    r"\| *(?P<gpu>\d{1,4}) +\S+ +\S+ +\S+ *\| *(?:N/A|(?P<use>\d{1,3}) ?%) +[^|\n]{2,16}? +(?P<used>\d{1,9})/(?P<total>\d{1,9}) ?MB *\|"
)
_GPU = pattern(r"^GPU: (\d{1,4})$", re.MULTILINE)
_INDENTED = pattern(r"^ {4,16}([A-Z][A-Z_0-9]{2,40}): (\S[^\n]{0,100})$", re.MULTILINE)


def gpu_facts(text: str) -> GpuFacts | None:
    """Return the AMD GPUs of a report; None where no tool of AMD's lists one.

    >>> text = '''
    ... Device  Node  IDs              Temp    Power  Partitions          SCLK     MCLK     Fan    Perf  PwrCap  VRAM%  GPU%
    ...               (DID,     GUID)  (Edge)  (Avg)  (Mem, Compute, ID)
    ... ====================================================================================================================
    ... 0       1     0x74a1,   28851  50.0°C  133.0W NPS1, SPX, 0        137Mhz   900Mhz   0%     auto  750.0W  0%     3%
    ... ====================================================================================================================
    ... '''
    >>> gpu = gpu_facts(text).devices[0]
    >>> gpu.name, gpu.temperature_c, gpu.power_limit_mw, gpu.utilization_pct
    ('AMD Instinct MI300X', 50, 750000, 3)
    """
    found = _read(text)
    if not found:
        return None
    devices = [
        {"index": index, **{name: value for name, value in fields.items() if name != "uncorrected"}}
        for index, fields in sorted(found.items())
    ]
    facts: dict[str, Any] = {"devices": devices[:_MOST], "vendor": "amd", "source": "report"}
    driver = re.search(r"^Driver version: (\d+(?:\.\d+){1,3})\s*$|amdgpu version: (\d+(?:\.\d+){2})\b", text, re.MULTILINE)
    if driver is not None:
        facts["driver_version"] = driver[1] or driver[2]
    return known(codec.as_fact(facts, GpuFacts, "rocm-smi"), None)


def counted(text: str) -> dict[str, Any]:
    """Return the facts on the driver: the GPUs by address, and the errors that amd-smi has counted on them."""
    found = [fields for _, fields in sorted(_read(text).items())]
    addresses = tuple(fields["pci_address"] for fields in found if "pci_address" in fields)
    if not found or len(set(addresses)) != len(found):
        return {}
    errors = tuple(
        AmdErrors(address=fields["pci_address"], block="all blocks", uncorrected=fields["uncorrected"], corrected=0)
        for fields in found
        if fields.get("uncorrected")
    )
    told = any("uncorrected" in fields for fields in found)
    return {"amd_devices": addresses, **({"amd_errors": errors} if told else {})}


def _read(text: str) -> Found:
    """Return what all forms tell, the most telling last; of several outputs of one form the last counts."""
    found: Found = {}
    for index, fields in (*_hardware(text), *_concise(text), *_long(text), *_table(text), *_lists(text)):
        found.setdefault(index, {}).update(fields)
    return found or dict(_agents(text))


_AGENT = pattern(r"^Agent \d{1,4} *$", re.MULTILINE)
_OF_AGENT = pattern(r"^  (Name|Marketing Name|Device Type|Vendor Name): +(\S[^\n]{0,100}?) *$", re.MULTILINE)
_VRAM = pattern(r"Segment: +GLOBAL; FLAGS: COARSE GRAINED *\n +Size: +(\d{1,12})\(0x[0-9a-f]+\) KB")


def _agents(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the GPUs that rocminfo lists, where no other tool numbers them: it has processors among its agents, and HIP's order."""
    starts = [found.end() for found in _AGENT.finditer(text)] if "HSA Agents" in text else []
    index = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=False):
        block = text[start:end]
        fields = dict(reversed(_OF_AGENT.findall(block)))  # the first of a name counts: the agent's, before those of its ISAs
        if fields.get("Device Type") != "GPU" or not fields.get("Name", "").startswith("gfx"):
            continue
        memory = _VRAM.search(block)
        yield (
            index,
            {
                "name": f"{_whole(fields.get('Marketing Name', 'GPU'))} ({fields['Name']})",
                **({"memory_total_bytes": int(memory[1]) << 10} if memory else {}),
            },
        )
        index += 1


def _hardware(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of ``rocm-smi --showhw``."""
    if "GFX RAS" in text:
        yield from ((int(row[1]), {"name": _whole(row[2]), "pci_address": row[3].lower()}) for row in _HARDWARE.finditer(text))


def _concise(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for title in _TITLE.finditer(text):
        last = None
        rows = 0
        for line in text[title.end() : title.end() + 300 * _MOST].split("\n")[1:]:
            if row := _ROW.match(line):
                rows, last = rows + 1, int(row[1])
                yield last, _of_row(row[2])
            elif last is not None and (name := _NAMED.match(line)):
                yield last, {"name": _whole(name[1])}
            elif rows and line.lstrip().startswith(("=", "-", "End of")):
                break


def _of_row(cells: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    device = re.match(r"\d{1,4} +(0x[0-9a-f]{4}),", cells)  # DID; "Model" of ROCm 6.0 is the board maker's number
    if device is not None and (name := by_device(device[1])[0]):
        found["name"] = name
    if degrees := _DEGREES.search(cells):
        found["temperature_c"] = int(degrees[1])
    if ends := _ENDS.match(cells):
        found |= _numbers(cap=ends["cap"], use=ends["use"])
    return found


def _numbers(cap: str, use: str) -> dict[str, Any]:
    watts = re.match(r"(\d{1,5})(?:\.\d+)?W?$", cap)
    share = re.match(r"(\d{1,3})%?$", use)
    found = {"power_limit_mw": int(watts[1]) * 1000} if watts is not None and int(watts[1]) else {}
    return {**found, "utilization_pct": int(share[1])} if share is not None else found


def _whole(name: str) -> str:
    """Return the name with its maker; what is cut at its beginning or is a number alone tells nothing.

    >>> _whole("Instinct MI210"), _whole("...Instinct MI300X OAM"), _whole("0x1586"), _whole("AMD Radeon RX 6800")
    ('AMD Instinct MI210', 'AMD Instinct MI300X OAM', 'AMD GPU', 'AMD Radeon RX 6800')
    """
    if name.startswith("0x"):
        return by_device(name)[0] or "AMD GPU"
    name = name.removeprefix("...")
    return name if name.upper().startswith("AMD") else f"AMD {name}"


_NAMES = ("device name", "card series")
_BYTES = {"vram total memory (b)": "memory_total_bytes", "vram total used memory (b)": "memory_used_bytes"}
_SENSORS = ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")


def _long(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """``GPU[0] : NAME: VALUE`` of all options but the concise table, and the same names in JSON."""
    told: dict[int, dict[str, str]] = {}
    for field in _FIELD.finditer(text):
        told.setdefault(int(field[1]), {})[field[2].strip().lower()] = field[3].strip()
    for card in _CARD.finditer(text):
        told.setdefault(int(card[1]), {}).update((pair[1].lower(), pair[2].strip()) for pair in _PAIR.finditer(card[2]))
    for index, fields in list(told.items())[:_MOST]:
        yield index, _of_fields(fields)


def _of_fields(fields: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    known = by_device(fields.get("device id", fields.get("gpu id", "")))[0]
    names = (fields.get(key, "N/A") for key in _NAMES)
    name = known or next((name for name in names if name[:1].isalpha() and name != "N/A"), "")
    if name:
        found["name"] = _whole(name)
    if re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", fields.get("pci bus", "")):
        found["pci_address"] = fields["pci bus"].lower()
    for key, fact in _BYTES.items():
        if (count := natural(fields.get(key, ""))) is not None:
            found[fact] = count
    degrees = next((fields[key] for key in _SENSORS if re.match(r"\d{1,3}\.", fields.get(key, ""))), "")
    if degrees:
        found["temperature_c"] = int(degrees.partition(".")[0])
    return found | _numbers(cap=fields.get("max graphics package power (w)", ""), use=fields.get("gpu use (%)", ""))


def _table(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = text.split("\n")
    for above, below in itertools.pairwise(lines):
        first = _FIRST.search(above) if "|" in above and max(len(above), len(below)) < 300 else None
        second = _SECOND.search(below) if first is not None else None
        if first is None or second is None:
            continue
        found: dict[str, Any] = {"pci_address": first["bdf"].lower(), "name": _whole(first["name"])}
        found |= {"memory_used_bytes": int(second["used"]) << 20, "memory_total_bytes": int(second["total"]) << 20}
        found |= {"temperature_c": int(first["degrees"])} if first["degrees"] else {}
        uncorrected = natural(first["ue"])
        found |= {} if uncorrected is None else {"uncorrected": uncorrected}
        limit = re.search(r"/(\d{1,5}) ?W", first["power"])
        yield int(second["gpu"]), found | _numbers(cap=limit[1] if limit else "", use=second["use"] or "")


def _lists(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the indented lines of ``amd-smi static``, ``metric`` and ``list``."""
    starts = list(_GPU.finditer(text))[: 3 * _MOST]
    for start, end in zip(starts, [*(later.start() for later in starts[1:]), len(text)], strict=False):
        fields = {pair[1]: pair[2].strip() for pair in _INDENTED.finditer(text[start.end() : min(end, start.end() + 100_000)])}
        if found := _of_list(fields):
            yield int(start[1]), found


_SIZES = {"TOTAL_VRAM": "memory_total_bytes", "USED_VRAM": "memory_used_bytes"}


def _of_list(fields: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", fields.get("BDF", "")):
        found["pci_address"] = fields["BDF"].lower()
    if fields.get("MARKET_NAME", "N/A") != "N/A":
        found["name"] = _whole(fields["MARKET_NAME"])
    for key, fact in _SIZES.items():
        if size := re.fullmatch(r"(\d{1,9}) MB", fields.get(key, "")):
            found[fact] = int(size[1]) << 20
    if degrees := re.match(r"(\d{1,3}) ?\S{0,4}C$", fields.get("HOTSPOT", "")):
        found["temperature_c"] = int(degrees[1])
    if (errors := natural(fields.get("TOTAL_UNCORRECTABLE_COUNT", ""))) is not None:
        found["uncorrected"] = errors
    return found
