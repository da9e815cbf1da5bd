"""Pasted output of nvidia-smi: ``-q`` as XML or text, ``--query-gpu``, the table, ``nvlink``, ``-L``, and its complaints."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from torchtune_sys.evidence.nvidia import smi_csv, smi_links, topology
from torchtune_sys.formats.nvidia_smi import values as smi
from torchtune_sys.formats.nvidia_smi.complaints import failures, parse_failure
from torchtune_sys.formats.nvidia_smi.logs import parse_query, parse_xml
from torchtune_sys.model import codec
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import known

_SOURCE = "nvidia-smi"
_MOST_GPUS = 256


def parse_nvidia_smi(text: str) -> GpuFacts | None:
    """Return what ``text`` says of the GPUs; None where nothing in it comes from nvidia-smi. Never raises.

    A complaint counts over a table that stands before it: people paste the good output of the host and then the bad one of the
    container.
    """
    text = text[: smi.SIZE_LIMIT]
    found, place = _all_forms(text)
    complaint = parse_failure(text)
    if complaint is not None:
        last = max(text.rfind(line) for _, _, line in failures(text))
        if found is None or not found["devices"] or last > place:
            found = {**complaint, **_known(_header(text)), "devices": complaint["devices"], "error": complaint["error"]}
    if found is None:
        found = _header(text)
    if not found:
        return None
    before = found.get("error") == "UNKNOWN" and worked_before(text)
    return known(codec.as_fact({**found, "source": "report", "worked_before": before}, GpuFacts, _SOURCE), None)


def _all_forms(text: str) -> tuple[dict[str, Any] | None, int]:
    """All forms that are there put together, the most telling first, and where the last one ends."""
    found: dict[str, Any] = {}
    place = -1
    for parse, marker in ((parse_xml, "</nvidia_smi_log>"), (parse_query, "NVSMI LOG==")):
        log = parse(text)
        if log is not None:
            place = max(place, text.rfind(marker), 0)
            _add(found, log)
    rows, driver, end = smi_csv.parse_csv(text)
    header = {**({"driver_version": driver} if driver else {}), **_header(text)}
    if rows:
        place = max(place, end)
        _add(found, {**header, "devices": rows})
    for devices, at in (parse_table(text), smi_links.parse_links(text), parse_list(text)):
        if devices:
            place = max(place, at)
            _number(found.get("devices", []), devices)
            _add(found, {**header, "devices": devices})
    matrix = topology.parse_matrix(text)
    if matrix is not None:
        _add(found, {**header, "devices": [{"index": int(gpu[3:])} for gpu in matrix.gpus()]})
    if not found:
        return None, -1
    _add_inforoms(text, found["devices"])
    return {**found, "p2p": _pairs(smi_links.parse_p2p(text), topology.pairs(matrix) if matrix else [])}, place


def _pairs(allowed: list[dict[str, Any]] | dict[str, str], linked: list[dict[str, Any]]) -> Any:
    """Return what pairs of GPUs may do, and how many NVLinks they have."""
    by_pair = {(pair["first"], pair["second"]): dict(pair) for pair in allowed} if isinstance(allowed, list) else {}
    for pair in linked:
        by_pair.setdefault((pair["first"], pair["second"]), {}).update(pair)
    return [by_pair[key] for key in sorted(by_pair)] or allowed


def _add(found: dict[str, Any], other: dict[str, Any]) -> None:
    """Fill what is not told yet. GPUs are the same by UUID or address, else by their number."""
    for name, value in other.items():
        if name != "devices" and not smi.is_reported(found.get(name, smi.NOT_REPORTED)):
            found[name] = value
    devices: list[dict[str, Any]] = found.setdefault("devices", [])
    for gpu in other["devices"]:
        same = next((known for known in devices if _same(known, gpu)), None)
        if same is not None:
            same.update({name: value for name, value in gpu.items() if not smi.is_reported(same.get(name, smi.NOT_REPORTED))})
            for name in ("lost", "reset_required"):
                same[name] = same.get(name, False) or gpu.get(name, False)
        elif all(known["index"] != gpu["index"] for known in devices):
            devices.append(gpu)


def _number(devices: list[dict[str, Any]], numbered: list[dict[str, Any]]) -> None:
    """Give GPUs the numbers that a form says which names them: a log of some GPUs (``-i 3``) does not tell them."""
    found = [next((gpu["index"] for gpu in numbered if _same(gpu, known)), known["index"]) for known in devices]
    if len(set(found)) == len(found):
        for gpu, index in zip(devices, found, strict=True):
            gpu["index"] = index


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    for name in ("uuid", "pci_address"):
        if isinstance(one.get(name), str) and isinstance(other.get(name), str):
            return bool(one[name] == other[name])
    return bool(one["index"] == other["index"])


def _add_inforoms(text: str, devices: list[dict[str, Any]]) -> None:
    """nvidia-smi warns of corrupted InfoROMs behind its table; of the others it says nothing."""
    for found in re.finditer(r"infoROM is corrupted at gpu ([0-9A-Fa-f:.]{7,16})", text):
        address = smi.convert(smi.bus_id, found[1])
        for gpu in devices:
            if gpu.get("pci_address") == address:
                gpu["inforom_valid"] = False


_PROMPT = pattern(r"(\w{1,32}@[\w.-]{1,64}):[^\n#$]{0,120}[#$] {0,4}([^\n]{0,200})")


def worked_before(text: str) -> bool:
    """Return whether nvidia-smi worked in a container, and said "Unknown Error" later in the same one: by the container's id in the prompt, or, in the
    host's network, by any prompt where the text tells that systemd was reloaded.

    >>> worked_before("root@098b49afe624:/# nvidia-smi\\n| NVIDIA-SMI 510.68.02    Driver Version: 510.68.02\\n"
    ...               "root@098b49afe624:/# nvidia-smi\\nFailed to initialize NVML: Unknown Error\\n")
    True
    """
    worked: set[str] = set()
    prompts = list(_PROMPT.finditer(text))[:1000]
    for prompt, end in zip(prompts, [*(later.start() for later in prompts[1:]), len(text)], strict=False):
        output = text[prompt.end() : min(end, prompt.end() + 50_000)]
        contained = re.fullmatch(r"\w+@[0-9a-f]{12}", prompt[1]) or "systemctl daemon-reload" in text
        if not prompt[2].startswith("nvidia-smi") or not contained:
            continue
        if "Failed to initialize NVML: Unknown Error" in output:
            if prompt[1] in worked:
                return True
        elif "Driver Version:" in output or "GPU 0: " in output:
            worked.add(prompt[1])
    return False


def _known(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _header(text: str) -> dict[str, Any]:
    """Versions in the table's first line; drivers from 595 on may call them KMD and CUDA UMD.

    >>> _header("| NVIDIA-SMI 535.54.03   Driver Version: 535.54.03   CUDA Version: 12.2     |")
    {'driver_version': '535.54.03', 'cuda_driver_version': '12.2', 'source': 'nvidia-smi'}
    """
    line = re.search(r"NVIDIA-SMI\s+(\d+(?:\.\d+)+)([^\n]*)", text)
    if line is None:
        return {}
    driver = re.search(r"(?:Driver|KMD) Version:\s*(\d+(?:\.\d+)+)", line.group(2))
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", line.group(2))
    if driver is None:
        return {}
    found: dict[str, Any] = {"driver_version": driver.group(1), "source": _SOURCE}
    if cuda is not None:
        found["cuda_driver_version"] = cuda.group(1)
    elif word := re.search(r"CUDA (?:UMD )?Version:\s*(ERR!)", line.group(2)):
        found["cuda_driver_version"] = smi.missing("failed", f"CUDA Version: {word.group(1)}")
    return {key: found[key] for key in ("driver_version", "cuda_driver_version", "source") if key in found}


_FIRST = pattern(
    r"\|\s*(?P<index>\d{1,3})\s+(?P<name>\S[^|\n]*?)\s*(?P<persistence>\bOn\b|\bOff\b|N/A|ERR!|WDDM|TCC|MCDM)\s*"
    r"\|\s*(?P<id>(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|N/A)\s+(?P<display>\S+)\s*\|\s*(?P<ecc>[^|\n]*?)\s*\|"
)
_WINDOWS = ("WDDM", "TCC", "MCDM")
"""Driver models of Windows, where the table of Linux has the persistence mode; on Jetson the address is N/A."""
_SECOND = pattern(
    r"\|\s*\S+\s+(?P<temperature>\d+C|N/A|ERR!)\s+\S+\s+(?P<power>[^|\n]*?)\s*"
    r"\|\s*(?P<memory>[^|\n]*?)\s*\|\s*(?P<utilization>\d+%|N/A|ERR!)\s+(?P<mode>[^|\n]*?)\s*\|"
)
_INSTANCE = pattern(r"\|[ ]{1,4}(\d{1,3})(?:[ ]{1,6}\d{1,3}){3}[ ]{1,6}\|")
_LONGEST_OF_INSTANCES = 100_000
_THIRD = pattern(r"\|\s+\|\s+\|\s*(?P<mig>Enabled\*?|Disabled\*?|N/A)\s*\|")
_PROCESS = pattern(
    r"\|\s*(?P<gpu>\d{1,3})\s+(?:\S{1,4}\s+\S{1,4}\s+)?(?P<pid>\d+)\s+(?P<type>[MCG+]{1,3})\s+(?P<name>[^|\n]*?)\s+(?P<used>\d+MiB|N/A)\s*\|"
)


def parse_table(text: str) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the table that plain nvidia-smi prints, and where the last one ends. Columns moved over the years (R384 to R6xx), the order
    of the cells did not.

    >>> parse_table('''
    ... |   0  NVIDIA GeForce ...  Off  | 00000000:09:00.0  On |                  N/A |
    ... | 30%   45C    P0    58W / 170W |    490MiB / 12288MiB |     12%      Default |
    ... ''')[0][0]["memory_total_bytes"] >> 20
    12288
    """
    devices: list[dict[str, Any]] = []
    place = -1
    lines = text.splitlines(keepends=True)
    at = 0
    for number, line in enumerate(lines):
        at += len(line)
        first = _FIRST.search(line) if "|" in line and len(line) < 1000 else None
        if first is None:
            continue
        if any(device["index"] == int(first["index"]) for device in devices):
            break  # the table was printed again
        second = _SECOND.search(lines[number + 1][:1000]) if number + 1 < len(lines) else None
        third = _THIRD.search(lines[number + 2][:1000]) if second is not None and number + 2 < len(lines) else None
        devices.append(_row(first, second, third))
        place = at
    if devices:
        _add_instances(text, devices)
        _add_processes(text, devices)
    return devices, place


def _row(first: re.Match[str], second: re.Match[str] | None, third: re.Match[str] | None) -> dict[str, Any]:
    device: dict[str, Any] = {
        "index": int(first["index"]),
        "name": smi.convert(str, first["name"]),
        "pci_address": smi.convert(smi.bus_id, first["id"]),
        "persistence": smi.convert(lambda words: words == "On", first["persistence"])
        if first["persistence"] not in _WINDOWS
        else smi.missing("not-supported", f"{first['persistence']}: a driver for Windows"),
        "display": smi.convert(lambda words: words == "On", first["display"]),
        "ecc": smi.convert(lambda words: words != "Off" and int(words) >= 0, first["ecc"]),
        "ecc_uncorrected_volatile": smi.convert(_count, first["ecc"]),
    }
    if second is not None:
        used, _, total = second["memory"].partition("/")
        device["memory_used_bytes"] = smi.convert(_table_mebibytes, used)
        device["memory_total_bytes"] = smi.convert(_table_mebibytes, total)
        device["temperature_c"] = smi.convert(smi.leading_number, second["temperature"])
        device["utilization_pct"] = smi.convert(smi.leading_number, second["utilization"])
        device["power_limit_mw"] = smi.convert(smi.milliwatts, second["power"].partition("/")[2])
        device["compute_mode"] = smi.convert(smi.compute_mode, second["mode"])
        # A GPU that does not answer any more shows ERR! in every cell of this row.
        device["lost"] = second["temperature"] == "ERR!" and "ERR!" in second["power"]
    if third is not None:
        device["mig"] = smi.convert(lambda words: words.startswith("Enabled"), third["mig"])
    return device


def _count(text: str) -> int:
    """``Off`` stands where ECC is off."""
    if text == "Off":
        return 0
    return int(text)


def _table_mebibytes(text: str) -> int:
    return smi.mebibytes(text.strip().replace("MiB", " MiB"))


def _add_instances(text: str, devices: list[dict[str, Any]]) -> None:
    """Count the rows of the table of MIG devices. Of a GPU without a row nothing is said: the paste may be cut."""
    _, header, rest = text.partition("MIG devices:")
    rest = rest.partition("Processes:")[0][:_LONGEST_OF_INSTANCES]
    rows = Counter(int(index) for index in _INSTANCE.findall(rest))
    for device in devices:
        if header and device.get("mig") is True and (device["index"] in rows or "No MIG devices found" in rest):
            device["mig_instances"] = rows[device["index"]]


def _add_processes(text: str, devices: list[dict[str, Any]]) -> None:
    _, header, rest = text.partition("Processes:")
    if not header:
        return
    by_index: dict[int, list[dict[str, Any]]] = {device["index"]: [] for device in devices}
    for line in rest.splitlines()[:2000]:
        found = _PROCESS.search(line[:1000])
        if found is not None and "C" in found["type"] and int(found["gpu"]) in by_index:
            by_index[int(found["gpu"])].append(
                {
                    "pid": int(found["pid"]),
                    "name": smi.convert(str, found["name"]),
                    "used_bytes": smi.convert(_table_mebibytes, found["used"]),
                }
            )
    for device in devices:
        device["processes"] = by_index[device["index"]]


_LISTED = pattern(
    r"^[ \t>]*(?:GPU (?P<index>\d{1,3}): (?P<name>[^\n(]{1,200}?) \(UUID: (?P<uuid>[0-9A-Za-z-]{1,100})\)"
    r"|MIG \S{1,30}[ \t]+Device[ \t]+\d{1,2}: \(UUID: (?P<instance>MIG-[^)\n]{1,100})\))",
    re.MULTILINE,
)


def parse_list(text: str) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of ``nvidia-smi -L``; MIG devices stand below their GPU.

    >>> parse_list("GPU 0: NVIDIA H200 (UUID: GPU-0000)\\n  MIG 1g.18gb     Device  0: (UUID: MIG-1111)")[0]
    [{'index': 0, 'name': 'NVIDIA H200', 'uuid': 'GPU-0000', 'mig': True, 'mig_instances': 1}]
    """
    devices: dict[int, dict[str, Any]] = {}
    instances: dict[int, set[str]] = {}
    place = index = -1
    for found in _LISTED.finditer(text):
        if len(devices) == _MOST_GPUS:
            break
        if found["index"] is not None:
            index, place = int(found["index"]), found.end()
            devices.setdefault(index, {"index": index, "name": found["name"], "uuid": found["uuid"]})
        elif index in devices:
            instances.setdefault(index, set()).add(found["instance"])
            devices[index].update(mig=True, mig_instances=len(instances[index]))
            place = found.end()
    return list(devices.values()), place
