"""Text as a program printed it, out of what mail, web pages, issue trackers, terminals and log collectors make of it."""

from __future__ import annotations

import re
from collections import Counter

from torchtune_sys.evidence.other_collectors import unfolded

_LONG = 2 << 20
"""Characters from which on a text is thinned: programs' logs are long, and say the same again and again."""
_ALIKE = 1000
"""Lines alike in all but their numbers that are kept from the start of a long text, and as many from its end."""
_ENTITIES = ("&gt;", "&lt;", "&quot;", "&#39;", "&#x27;", "&nbsp;")
_LINK = re.compile(r"\[([^\[\]\n]{1,400})\]\(https?://[^()\s]{1,1000}\)")
"""Markdown, also around the paths that VS Code copies out of its terminal."""
_COLLECTED = r"(?:[A-Z]{4,8} )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.(?:\d{7}|\d{9})Z ?"
"""What GitHub Actions (seven digits), Docker and Kubernetes (nine), and with a level cloud consoles put before each line of a log."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\ufffd\[\d{0,3}m|(?<!\S)\[\d{1,2}m(?=\S[^\n]*\[0m)|(?<=\S)\[0m$", re.MULTILINE)
"""Colours of a terminal; web pages take the escape character out of them."""

_WIDE = " " * 48
_FILLED = re.compile(r"(?<=\S) {48,}(?=[A-Z][\w ./()-]{0,40}: )")
"""A terminal filled a line to its width, and the paste lost the line's end; after it a label."""


def unescaped(text: str) -> str:
    """Return the text without what HTML and editors put in the place of characters.

    >>> unescaped("couldn&#x27;t communicate &gt; x")
    "couldn't communicate > x"
    """
    text = text.removeprefix("\ufeff").replace("\u00a0", " ").replace("\uff1a", ": ")
    if any(entity in text for entity in _ENTITIES) and "<nvidia_smi_log" not in text:
        from html import unescape

        text = unescape(text).replace("\u00a0", " ")
    return _LINK.sub(r"\1", text) if "](http" in text else text


def plain(text: str) -> str:
    """Return the lines of a program's output, each where the program began it.

    >>> plain("> 2025-01-01T00:00:00.1234567Z a\\r\\n> 2025-01-01T00:00:00.1234567Z  b\\r\\n> 2025-01-01T00:00:00.1234567Z a")
    'a\\n b\\na'
    """
    text = thinned(unescaped(text)).replace("\r\n", "\n").replace("\r", "\n")
    text = _COLOUR.sub("", text) if "\x1b" in text or "\ufffd[" in text or re.search(r"\[\d{0,2}m", text) else text
    text = _without(text, r"[ \t]{0,3}(?:> ?)+")
    text = _without(text, _COLLECTED)
    text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))  # a pattern would try each blank of a long row
    text = _FILLED.sub("\n", text) if _WIDE in text else text
    return unfolded(_dedented(_single_spaced(text)))


_NUMBERS = re.compile(r"\b[0-9a-f]{6,}\b|\d+")


def thinned(text: str) -> str:
    """Return a long text without the lines in the middle of those that are alike in all but their numbers.

    The kernel's log is read from the whole text; here a report, a table or an error may stand anywhere, and each is of its own.

    >>> thinned("step 1\\n" * 3)
    'step 1\\nstep 1\\nstep 1\\n'
    """
    if len(text) < _LONG:
        return text
    lines = text.split("\n")
    shapes = [hash(_NUMBERS.sub("0", line[:200])) for line in lines]
    ahead = Counter(shapes)
    seen: Counter[int] = Counter()
    kept = []
    for line, shape in zip(lines, shapes, strict=True):
        seen[shape] += 1
        if seen[shape] <= _ALIKE or ahead[shape] - seen[shape] < _ALIKE:
            kept.append(line)
    return "\n".join(kept)


_SEVERAL = 3


def _without(text: str, begins: str) -> str:
    """Without what matches ``begins`` where it begins several lines. First sought behind a line break, which is found faster than the beginning of a
    line: most texts have none."""
    if not re.search(rf"\n{begins}", text):
        return text
    mark = re.compile(rf"^{begins}", re.MULTILINE)
    return mark.sub("", text) if len(mark.findall(text)) >= _SEVERAL else text


def _single_spaced(text: str) -> str:
    """Without the empty lines that stand after each line of a text copied out of some web pages and mails."""
    lines = text.split("\n")
    doubled = len(lines) >= 2 * _SEVERAL and not any(lines[1::2]) and all(lines[:-1:2][:4])
    return "\n".join(lines[::2]) if doubled else text


def _dedented(text: str) -> str:
    """Without the indentation that all lines have."""
    indents = [len(line) - len(line.lstrip(" ")) for line in text.split("\n") if line]
    common = min(indents, default=0)
    return "\n".join(line[common:] for line in text.split("\n")) if common else text


_NOT_READ = (
    (
        r"^# dmidecode \d|^Handle 0x[0-9A-F]{4}, DMI type \d",
        "dmidecode without all memory devices",
        "give dmidecode -t memory as root, or torchtune-sys record on the host, which reads the firmware's tables itself",
    ),
    (r"^AMDSMI Tool: ", "amd-smi version", "give plain amd-smi or rocm-smi, which list the GPUs, or torchtune-sys record"),
    (
        r"ROCm System Management Interface|^={3,} ?ROCm-smi",
        "rocm-smi without a GPU",
        "dmesg | grep -i amdgpu says why; give torchtune-sys record",
    ),
    (
        r"^c[rw-]{8}[.+-]{0,2}\s+\d+ \w+\s+\w+\s+\d+, +\d+ .{0,40}\b(?:nvidia\w*|kfd|renderD\d+)$",
        "ls -l /dev/nvidia*, /dev/kfd or /dev/dri",
        "give torchtune-sys record",
    ),
    (
        r"^<!DOCTYPE topology SYSTEM \"hwloc|^<topology version=\"\d|^Machine \(\d+[A-Z]B",
        "lstopo",
        "give numactl -H and lspci -tv, or torchtune-sys record",
    ),
    (r"^NodeName=\S{1,200} (?:Arch=|CoresPerSocket=)", "scontrol show node", "run torchtune-sys check on the node"),
    (r"^hca_id:\s*\w", "ibv_devinfo without its ports", "give the whole output, or ibstat"),
    (r"^(?:[\w-]+[/,] ?[\w.]+, \S+, \w+: (?:installed|built|added))", "dkms status", "give the output of the build that failed"),
    (
        r"(?:^(?:abi|debug|dev|fs|kernel|net|vm)\.[\w.*/-]{2,80} ?= ?\S[^\n]{0,200}\n){8}",
        "sysctl's configuration",
        "give the output of sysctl -a, which shows what is set",
    ),
    (
        r"^# gpu +(?:pid|pwr|sm|mem|gtemp)\b",
        "nvidia-smi dmon",
        "give nvidia-smi -q for the state of the GPUs, and the kernel log for what failed",
    ),
    (r"^ +total +used +free +shared\b", "free without its unit", "give free -h or /proc/meminfo"),
    (
        r"Kubelet(?:HasSufficientMemory|HasNoDiskPressure|Ready)\b|^ {0,2}kubelet_version|^ {0,4}Kubelet Version: ",
        "kubectl describe node",
        "run torchtune-sys record on the node (generate kubernetes daemonset does it on all)",
    ),
    (
        r"^[\w.:-]{1,20}(?::| {2,}Link encap)[^\n]{0,60}(?:flags=\d|HWaddr|Local Loopback)",
        "ifconfig",
        "give ip addr; torchtune-sys check --nnodes 2 on the host says which of them NCCL and Gloo take",
    ),
    (r"^pci/[0-9a-f:.]{7,12}:$", "devlink", "give ibstat, or torchtune-sys record on the host, for the state of the ports"),
    (
        r"^ +CPU0 +(?:CPU1 .*)?$",
        "/proc/interrupts",
        "torchtune-sys record on the host reads it, with the NUMA nodes of the cards",
    ),
    (
        r"^kern\.ostype(?::| =) (?!Linux)",
        "sysctl of another system than Linux",
        "this tool checks Linux hosts",
    ),
    (r"^Slot:\t[0-9a-f:.]+\nClass:\t", "lspci -mm", "give lspci -nnvv as root, which shows more"),
    (r"^\w+ \d+ \d+ (?:-|[\w,-]+,) (?:Live|Loading) 0x", "/proc/modules", "give the kernel's log, or torchtune-sys record"),
    (
        r"^ ?CUDA Device Query \(|^deviceQuery, CUDA Driver = |^\[CUDA Bandwidth Test\]|^\[P2P \(Peer-to-Peer\) GPU Bandwidth|^nvbandwidth Version|^# nThread \d+ nGpus \d",
        "a test program of CUDA or NCCL (deviceQuery, nvbandwidth, nccl-tests …)",
        "give nvidia-smi -q and nvidia-smi topo -m for the state of the GPUs, and what failed to torchtune-sys diagnose",
    ),
    (r"^HSA System Attributes", "rocminfo without a GPU", "dmesg | grep -i amdgpu says why; give torchtune-sys record"),
    (r"^Module {2,}Size {2,}Used by", "a part of lsmod", "give the whole, the kernel's log, or torchtune-sys record"),
    (r"^ GDS release version: ", "gdscheck", "for files that libcufile refuses give its cufile.log to torchtune-sys diagnose"),
    (r" NCCL (?:INFO|WARN) ", "NCCL's log alone", "torchtune-sys diagnose FILE"),
    (r"^Package {2,}Version\b", "pip list without torch", "run it with the Python that you train with"),
)
"""Output that is known and that no reader takes, and what tells the same."""


def not_read(text: str) -> str:
    """Return what a text is, of which nothing is read; ``""`` where that is not known.

    >>> not_read("# dmidecode 3.3\\nGetting SMBIOS data from sysfs.\\n").partition(":")[0]
    'holds the output of dmidecode without all memory devices, which is not read'
    """
    found = next(((name, todo) for pattern, name, todo in _NOT_READ if re.search(pattern, text[:_LONG], re.MULTILINE)), None)
    return "" if found is None else f"holds the output of {found[0]}, which is not read: {found[1]}"
