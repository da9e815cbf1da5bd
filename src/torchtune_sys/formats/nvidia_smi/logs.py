"""Parse the logs that ``nvidia-smi -q`` prints, as XML or text, into the shape of ``model.facts.gpu.GpuFacts``.

A text may hold several logs: parts (``-d ECC``), one GPU after the other (``-i 3``), the same again later. The last value counts. Pasted
text and the live host both use it: where NVML's library cannot be loaded, the tool runs nvidia-smi.
"""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.formats.nvidia_smi.fields import Paths, device
from torchtune_sys.formats.nvidia_smi.values import NOT_REPORTED, SIZE_LIMIT, SOURCE, bus_id, convert, cuda, is_reported, missing
from torchtune_sys.model.numbers import natural

_DEPTH = 12
_MOST_GPUS = 256


class LogBlock:
    """One GPU of a log: its values by their path, and its processes (None if the log does not list any)."""

    def __init__(self, gpu: str) -> None:
        self.paths: Paths = {"id": gpu} if gpu else {}
        self.processes: list[Paths] | None = None
        self.whole = True

    def add(self, later: LogBlock) -> None:
        self.paths.update(later.paths)
        self.processes = self.processes if later.processes is None else later.processes
        self.whole = self.whole or later.whole

    def uuid(self) -> str:
        return self.paths.get("uuid") or self.paths.get("gpu uuid", "")


class Log:
    """One log: the values of the host, and those of each GPU."""

    def __init__(self) -> None:
        self.head: Paths = {}
        self.blocks: list[LogBlock] = []
        self.whole = True

    def of_another_host(self, blocks: dict[str, LogBlock]) -> bool:
        """Return whether a GPU at the same address has another UUID."""
        pairs = [(block, blocks[block.paths.get("id", "")]) for block in self.blocks if block.paths.get("id", "") in blocks]
        return any(new.uuid() and old.uuid() and new.uuid() != old.uuid() for new, old in pairs)


def parse_xml(text: str) -> dict[str, Any] | None:
    """Return the facts in the ``nvidia-smi -q -x`` logs of ``text``; None if there is none.

    Of a log that is cut off, the GPUs before the cut are whole, and of the one in which it is cut the rest is ``unparsed``.

    >>> found = parse_xml("<nvidia_smi_log><driver_version>580.95.05</driver_version><gpu id='00000000:18:00.0'>"
    ...                   "<product_name>NVIDIA L4</product_name></gpu></nvidia_smi_log>")
    >>> found["driver_version"], found["devices"][0]["name"], found["devices"][0]["pci_address"]
    ('580.95.05', 'NVIDIA L4', '0000:18:00.0')
    """
    text = text[:SIZE_LIMIT]
    starts = [found.start() for found in re.finditer(r"<nvidia_smi_log\b", text)][:1000]
    logs = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=False):
        body, closed, _ = text[start:end].partition("</nvidia_smi_log>")
        if "<!ENTITY" not in body:  # nvidia-smi declares none
            logs.append(_xml_log(body, bool(closed)))
    logs = [log for log in logs if log.blocks or log.head]
    return _facts(logs) if logs else None


_TOKEN = re.compile(r"<(/?)([A-Za-z_][\w.-]{0,100})((?:\s[^<>]{0,300})?)>([^<]*)")
_SKIPPED = frozenset(("supported_clocks", "accounted_processes"))


def _xml_log(body: str, closed: bool) -> Log:
    """Tags and what stands behind them, one after the other: no XML parser, since pasted logs are cut, and process names are not escaped."""
    log = Log()
    stack: list[str] = []
    for token in _TOKEN.finditer(body):
        end, tag, attributes, words = token.groups()
        if end:
            if tag in stack:
                del stack[len(stack) - 1 - stack[::-1].index(tag) :]
            if tag == "gpu" and log.blocks:
                log.blocks[-1].whole = True
            continue
        if len(stack) > _DEPTH:
            break
        stack.append(tag)
        if stack[1:2] != ["gpu"]:
            if len(stack) == 2:
                log.head.setdefault(tag, _unescaped(words))
        elif len(stack) == 2:
            if len(log.blocks) == _MOST_GPUS:
                break
            found = re.search(r"id=[\"']([^\"']*)[\"']", attributes)
            log.blocks.append(LogBlock(found[1] if found else ""))
            log.blocks[-1].whole = False
        elif not _SKIPPED.intersection(stack):
            _xml_value(log.blocks[-1], stack[2:], _unescaped(words))
    log.whole = closed
    return log


def _xml_value(block: LogBlock, stack: list[str], words: str) -> None:
    if stack[0] == "mig_devices":
        number = int(block.paths.get("mig_devices/#", "0")) + (stack[1:] == ["mig_device"])
        block.paths["mig_devices/#"] = str(number)
    elif stack[0] == "processes":
        block.processes = block.processes or []
        if len(stack) == 1:
            block.paths["processes"] = words
        elif len(stack) == 2:
            block.processes.append({})
        elif block.processes:
            block.processes[-1].setdefault(stack[2], words)
    else:
        block.paths.setdefault("/".join(stack), words)


def _unescaped(text: str) -> str:
    if "&" in text:
        from html import unescape

        text = unescape(text)
    return text.strip()


_MARKER = re.compile(r"^(.{0,60}?)=+NVSMI LOG=+[ \t]*$", re.MULTILINE)
_HEADLESS = re.compile(
    r"^(.{0,60}?)(?=GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7][ \t]*\n.{0,64}?"
    r"    (?:Product Name|MIG Mode|PCI|Performance State|FB Memory Usage|Utilization|E[Cc][Cc] Mode|Retired Pages|Remapped Rows|Temperature"
    r"|Clocks \w+ Reasons|Compute Mode|Processes)\s)",
    re.MULTILINE,
)
"""A GPU of a log whose head was not copied, with one of the labels that may come first in it or in a part of it."""
_OTHER_OUTPUT = ("####", "+---", "====", "$ ", "GPU ", "<")
_GPU = re.compile(r"GPU ([0-9A-Za-z]+:[0-9A-Za-z]+:[0-9A-Za-z]+\.[0-9A-Za-z]+)$")


def parse_query(text: str) -> dict[str, Any] | None:
    """Return the facts in the ``nvidia-smi -q`` logs of ``text``; None if there is none.

    >>> parse_query("==============NVSMI LOG==============\\nDriver Version  : 535.54.03\\nCUDA Version : 12.2\\n"
    ...             "GPU 00000000:83:00.0\\n    Product Name   : NVIDIA H200\\n    FB Memory Usage\\n        Total : 143771 MiB\\n"
    ...            )["devices"][0]["memory_total_bytes"]
    150754820096
    """
    text = text[:SIZE_LIMIT]
    markers = list(_MARKER.finditer(text))[:1000] or list(filter(None, [_HEADLESS.search(text)]))
    ends = [marker.start() for marker in markers[1:]] + [len(text)]
    logs = [_text_log(text[marker.end() : end], marker[1]) for marker, end in zip(markers, ends, strict=False)]
    return _facts(logs or _parts(text)) if logs or _PART.search(text) else None


_PART = re.compile(
    r"^(?P<depth>[ \t>]{0,12})(?:Fabric|Clocks (?:Event|Throttle) Reasons|Remapped Rows|ECC Errors|E[Cc][Cc] Mode|Retired Pages|MIG Mode"
    r"|FB Memory Usage|BAR1 Memory Usage|GPU Power Readings|Power Readings|vGPU Software Licensed Product|GRID Licensed Product|GPU Virtualization Mode"
    r"|GPU Reset Status|Temperature|Max Clocks)[ \t]*\n(?:(?P=depth)[ \t]+\w[^:\n]{0,60}\n)?"
    r"(?P=depth)[ \t]+\w[^:\n]{0,60}[ \t]{2}: \S",
    re.MULTILINE,
)
"""A section of a GPU, by itself: what ``nvidia-smi -q | grep -A`` leaves."""


def _parts(text: str) -> list[Log]:
    """Read GPUs of which single sections were copied. A section that comes again begins the next GPU."""
    log = Log()
    seen: set[str] = set()
    stack: list[tuple[int, str]] = []
    for part in list(_PART.finditer(text))[: _MOST_GPUS * 16]:
        depth = part["depth"]
        rest = text[part.start() : part.start() + 20_000].split("\n")
        name = rest[0].strip(" \t>")
        if name in seen or not log.blocks:
            if len(log.blocks) == _MOST_GPUS:
                break
            log.blocks.append(LogBlock(""))
            seen = set()
        seen.add(name)
        stack = []
        _query_line(f" {name}", log.blocks[-1], stack)
        for line in rest[1:]:
            if not line.startswith((f"{depth} ", f"{depth}\t")):
                break
            _query_line(f" {line[len(depth) :]}", log.blocks[-1], stack)
    return [log] if log.blocks else []


def _text_log(body: str, prefix: str) -> Log:
    """Read one log as text. ``prefix`` precedes each line: quoting, indentation, a container's name."""
    log = Log()
    stack: list[tuple[int, str]] = []
    for line in body.split("\n"):
        line = line[len(prefix) :] if line.startswith(prefix) else line
        gpu = _GPU.match(line.rstrip())
        if gpu is not None and len(log.blocks) < _MOST_GPUS:
            log.blocks.append(LogBlock(gpu[1]))
            stack = []
        elif line.startswith(_OTHER_OUTPUT):
            break  # another command's output in the same paste
        elif log.blocks:
            _query_line(line, log.blocks[-1], stack)
        else:
            label, colon, value = line.partition(" : ")
            if colon:
                log.head.setdefault(label.strip().lower().replace(" ", "_"), value.strip())
    return log


def _query_line(line: str, block: LogBlock, stack: list[tuple[int, str]]) -> None:
    label, colon, value = line.partition(" : ")
    name, depth = label.strip().lower(), len(line) - len(line.lstrip())
    if not name or depth == 0 or len(stack) > _DEPTH:
        return
    while stack and stack[-1][0] >= depth:
        stack.pop()
    place = "/".join([part for _, part in stack] + [name])
    stack.append((depth, name))
    if name == "processes":
        block.processes = []
    if name == "process id" and block.processes is not None:
        block.processes.append({})
    if block.processes and name in _PROCESS_LABELS:
        block.processes[-1][_PROCESS_LABELS[name]] = value.strip()
    elif place in ("mig device", "mig devices"):
        there = int(block.paths.get("mig device/#", "0"))
        block.paths["mig device/#"] = str(there + (not colon and place == "mig device"))
    elif colon:
        block.paths.setdefault(place, value.strip())


_PROCESS_LABELS = {"process id": "pid", "type": "type", "name": "process_name", "used gpu memory": "used_memory"}


def _facts(logs: list[Log]) -> dict[str, Any]:
    head, blocks, not_reached = _merged(logs)
    devices = []
    for index, block in zip(_indices(head, blocks), blocks, strict=True):
        found = device(index, block.paths, block.processes)
        devices.append(found if block.whole else _cut(found))
    devices += [_cut(device(len(devices), block.paths, None)) for block in not_reached]
    driver = head.get("driver_version", "")
    return {
        "driver_version": convert(str, driver) if driver else NOT_REPORTED,
        "cuda_driver_version": cuda(head.get("cuda_version")),
        "devices": devices,
        "source": SOURCE,
    }


def _merged(logs: list[Log]) -> tuple[Paths, list[LogBlock], list[LogBlock]]:
    """All logs of the first host: what they say of it, its GPUs, and those that a cut log did not reach."""
    head: Paths = {}
    blocks: dict[str, LogBlock] = {}
    not_reached: list[LogBlock] = []
    for log in logs:
        if log.of_another_host(blocks):
            continue
        head.update(log.head)
        for number, block in enumerate(log.blocks):
            place = block.paths.get("id", "") or f"#{number}"
            if place in blocks:
                blocks[place].add(block)
            else:
                blocks[place] = block
        not_reached = [] if log.whole else _not_reached(log)
    ordered = list(blocks.values())
    return head, ordered if len(logs) == 1 else sorted(ordered, key=_order), not_reached


def _not_reached(log: Log) -> list[LogBlock]:
    """Return one GPU without values if the log ends between two GPUs: it attaches more than it describes."""
    attached = log.head.get("attached_gpus", "")
    all_whole = all(block.whole for block in log.blocks)
    missed = len(log.blocks) < (natural(attached, 3) or 0)
    return [LogBlock("")] if all_whole and missed else []


def _cut(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was read with its gaps: what it does not hold may have stood behind the cut."""
    rest = missing("unparsed", "the output is cut off here")
    return {name: value if is_reported(value) else rest for name, value in found.items()}


def _order(block: LogBlock) -> str:
    address = convert(bus_id, block.paths.get("id", ""))
    return address if isinstance(address, str) else "~"


def _indices(head: Paths, blocks: list[LogBlock]) -> list[int]:
    """NVML counts GPUs as they are printed. Where not all are (``-i 3``), the minor number is the closest to it that is told."""
    minors = [block.paths.get("minor_number") or block.paths.get("minor number", "") for block in blocks]
    attached = head.get("attached_gpus", "")
    numbers = [natural(minor, 3) for minor in minors]
    usable = None not in numbers and len(set(minors)) == len(minors)
    if attached.isdigit() and attached != str(len(blocks)) and usable:
        return [number for number in numbers if number is not None]
    return list(range(len(blocks)))
