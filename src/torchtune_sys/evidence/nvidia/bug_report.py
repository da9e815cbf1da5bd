"""Files of the host in the log of nvidia-bug-report.sh: the kernel and its arguments, processor, memory, modules. What its commands print is
read as in any other text."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.evidence.proc_files import cpu_facts, memory_facts
from torchtune_sys.formats.kernel_log import EARLIER
from torchtune_sys.formats.kernel_messages import read_log
from torchtune_sys.formats.nvidia_bug_report import files
from torchtune_sys.knowledge.xid import xid
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.facts.system import Os, SystemFacts
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing

_MARK = "Start of NVIDIA bug report log file"
_UNAME = pattern(r"^uname: Linux \S+ (\S+) .*?\b(x86_64|aarch64|ppc64le)\b", re.MULTILINE)
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
_MODULES = {
    "module_loaded": "nvidia",
    "uvm_loaded": "nvidia_uvm",
    "peermem_loaded": "nvidia_peermem",
    "storage_loaded": "nvidia_fs",
    "nouveau_loaded": "nouveau",
}


def facts(text: str) -> dict[str, Any]:
    """Return the facts by family; empty where the text is not such a log."""
    if _MARK not in text:
        return {}
    there = dict(files(text))
    found: dict[str, Any] = {"system": _system(text, there)}
    if (cpu := there.get("/proc/cpuinfo", "")).strip():
        found["cpu"] = cpu_facts(cpu, whole=True)
    if "/proc/meminfo" in there or _THP in there:
        found["memory"] = _memory(there)
    return found


def modules(text: str) -> dict[str, bool]:
    """Return the facts on the driver by name, from /proc/modules in such a log, or from lsmod: both list all that are loaded.

    >>> modules("Module                  Size  Used by\\nnouveau 2469888 0\\n" + "".join(f"x{n} 1 0\\n" for n in range(9)))["nouveau_loaded"]
    True
    """
    listed = dict(files(text)).get("/proc/modules", "") if _MARK in text else ""
    shown = _LSMOD.search(text) if not listed and "Used by" in text else None
    loaded = {line.split(" ", 1)[0] for line in (shown[1] if shown else listed).split("\n")}
    return {fact: name in loaded for fact, name in _MODULES.items()} if len(loaded) > (_FEW if shown else 1) else {}


_LSMOD = pattern(
    r"^Module {2,30}Size {1,8}Used by[ \t]*\n((?:\w{1,60} +\d{1,9} +-?\d{1,6}\b[^\n]{0,2000}(?:\n|\Z))+)", re.MULTILINE
)
_FEW = 8
"""Rows of lsmod that grep or head left: what they lack is not known to be absent."""


_GRAVE = frozenset({"lost", "memory", "gsp", "nvlink", "gpu"})
"""Of the kinds of Xid (``knowledge.xid``) those that speak against the GPU, and not against a program."""


def of_earlier_boots(text: str) -> tuple[str, ...]:
    """Return what the log files tell of a GPU that failed before this boot, the newest line of each kind; this boot's own log is judged.

    >>> of_earlier_boots(EARLIER + "Jul 7 10:00:00 a kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\\n" * 2)
    ('An earlier boot logged: Jul 7 10:00:00 a kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.',)
    """
    found: dict[tuple[str, int], str] = {}
    for line in re.findall(rf"^{EARLIER}[^\n]*", text, re.MULTILINE):
        log = read_log(line, "report")
        for event in () if log is None or isinstance(log.events, Missing) else log.events:
            if event.kind in ("gpu-lost", "gpu-init") or (event.kind == "xid" and xid(event.code).judged in _GRAVE):
                found[event.kind, event.code] = line[:300]
    return tuple(found.values())


def _system(text: str, there: dict[str, str]) -> SystemFacts:
    uname = _UNAME.search(text)
    release: dict[str, str] = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', there.get("/etc/os-release", ""), re.MULTILINE))
    os = Os(
        id=release.get("ID", ""),
        id_like=tuple(release.get("ID_LIKE", "").split()),
        version=release.get("VERSION_ID", ""),
        pretty_name=release.get("PRETTY_NAME", release.get("ID", "")),
        codename=release.get("VERSION_CODENAME", ""),
    )
    arguments = there.get("/proc/cmdline", "").split()
    return partly(
        SystemFacts,
        os=os if os.id else missing(),
        kernel=uname[1] if uname else missing(),
        machine=uname[2] if uname else missing(),
        cmdline=tuple(arguments) if arguments else missing(),
    )


def _memory(there: dict[str, str]) -> MemoryFacts:
    chosen = re.search(r"\[(\w+)\]", there.get(_THP, ""))
    return memory_facts(there.get("/proc/meminfo", ""), **({"thp": chosen[1]} if chosen else {}))
