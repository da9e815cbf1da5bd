"""/proc/cpuinfo and /proc/meminfo as somebody pasted them, or a bug report holds them."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.evidence.lscpu import flags_of
from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.formats.architecture import architecture_of
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.patterns import pattern

_FIRST = pattern(r"^processor\s*: \d{1,5}\n(?:[^\n]+\n){0,40}?(?:flags|Features|CPU implementer|cpu|isa)\s*:", re.MULTILINE)
_MEMORY = pattern(r"^MemTotal:\s+\d{1,15} kB\nMemFree:\s", re.MULTILINE)


def facts(text: str) -> dict[str, Any]:
    """Return the facts by family; empty where the text holds neither file.

    Of a single processor it is not told how many there are: people paste the first, which is like the others.

    >>> sorted(facts("MemTotal:  2048 kB\\nMemFree:  9 kB\\n"))
    ['memory']
    """
    found: dict[str, Any] = {}
    if (start := _FIRST.search(text)) is not None:
        found["cpu"] = cpu_facts(text[start.start() :])
        if machine := architecture_of("", text[start.start() :]):
            found["system"] = partly(SystemFacts, machine=machine)
    if _MEMORY.search(text):
        found["memory"] = memory_facts(text)
    return found


def cpu_facts(text: str, *, whole: bool = False) -> CpuFacts:
    """Return what /proc/cpuinfo tells; ``whole``: also of a single processor that it is the only one."""
    values = dict(re.findall(r"^([\w ]{1,30}?)\s*: (.*)$", text.partition("\n\n")[0], re.MULTILINE))
    numbers = [int(number) for number in re.findall(r"^processor\s*: (\d{1,5})$", text, re.MULTILINE)]
    counts = _counts(text, numbers)
    cut = counts is None and _TOPOLOGY.search(text) is not None
    return partly(
        CpuFacts,
        model=values.get("model name", missing()),
        online=CpuSet(numbers) if len(numbers) > (0 if whole else 1) and not (cut and not whole) else missing(),
        flags=flags_of(values["flags"]) if "flags" in values else missing(),
        **counts or {},
    )


_TOPOLOGY = pattern(
    r"^physical id\s*: (\d{1,5})\nsiblings\s*: (\d{1,5})\ncore id\s*: (\d{1,5})\ncpu cores\s*: (\d{1,5})$", re.MULTILINE
)
"""Linux arch/x86/kernel/cpu/proc.c: of each processor its package, the threads online in it, its core and the cores online in it."""


def _counts(text: str, numbers: list[int]) -> dict[str, Any] | None:
    """Return sockets, cores and whether these have several threads, where each package lists as many processors as it says to have: a part of
    the file does not, and neither do other processors than x86's.

    >>> block = "physical id\\t: 0\\nsiblings\\t: 2\\ncore id\\t\\t: 0\\ncpu cores\\t: 1\\n"
    >>> _counts(block * 2, [0, 1]), _counts(block, [0])
    ({'sockets': 1, 'cores': 1, 'smt': True}, None)
    """
    told = [tuple(map(int, found)) for found in _TOPOLOGY.findall(text)]
    packages = {package: (siblings, cores) for package, siblings, _, cores in told}
    whole = {package: sum(one[0] == package for one in told) == siblings for package, (siblings, _) in packages.items()}
    cores = {(package, core) for package, _, core, _ in told}
    if not told or len(told) != len(numbers) or not all(whole.values()):
        return None
    return {"sockets": len(packages), "cores": len(cores), "smt": len(cores) < len(numbers)}


def memory_facts(text: str, **more: Any) -> MemoryFacts:
    """Return what /proc/meminfo tells; ``more`` is told elsewhere."""
    kib = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d{1,15}) kB$", text, re.MULTILINE)}
    names = {
        "total_bytes": "MemTotal",
        "available_bytes": "MemAvailable",
        "swap_total_bytes": "SwapTotal",
        "swap_free_bytes": "SwapFree",
    }
    facts: dict[str, Any] = {fact: kib[name] for fact, name in names.items() if name in kib}
    return partly(MemoryFacts, **facts, **more)
