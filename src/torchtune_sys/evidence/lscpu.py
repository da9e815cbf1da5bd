"""What ``lscpu`` prints in English: alone, or in the report of collect_env, which ends with it."""

from __future__ import annotations

import re

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.evidence.report_lines import Lines, value_of
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.numa import NumaFacts, NumaNode
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, known

_OF_LSCPU = (
    "Architecture",
    "CPU(s)",
    "On-line CPU(s) list",
    "Model name",
    "Socket(s)",
    "Core(s) per socket",
    "Core(s) per cluster",
    "Thread(s) per core",
    "Vendor ID",
    "Flags",
)
_ENOUGH = 2
"""Labels that make a text lscpu's, in its own capitals: a single one may stand anywhere."""
_NODE = pattern(r"^(?:.{0,120}?[ \t>|\]])?NUMA node(\d{1,4}) CPU\(s\):[ \t]*(\S{0,4000})[ \t]*$", re.MULTILINE)
_LONGEST = 2000


_OF_OTHERS = {"Vendor ID", "Flags"}
"""Labels that dmidecode prints, too, of a TPM and of a processor."""


def recognised(lines: Lines) -> bool:
    found = {label for label in _OF_LSCPU if label in lines.values}
    return len(found) >= _ENOUGH and not found <= _OF_OTHERS


def cpu_facts(lines: Lines) -> Fact[CpuFacts]:
    """Return the block, where it is in English."""
    if not recognised(lines) and not (lines.recognised and "Model name" in lines.values):
        return missing()
    online = _cpus(value_of(lines, "On-line CPU(s) list"))
    present = _present(lines, online)
    sockets = _count(lines, "Socket(s)")
    cores, smt = _cores(lines, sockets, online, present)
    flags = value_of(lines, "Flags")
    return partly(
        CpuFacts,
        model=value_of(lines, "Model name"),
        online=online,
        present=present,
        sockets=sockets,
        cores=cores,
        smt=smt,
        flags=flags if isinstance(flags, Missing) else flags_of(flags),
    )


def _present(lines: Lines, online: Fact[CpuSet]) -> Fact[CpuSet]:
    """Return the CPUs that there are: lscpu lists those offline, where there are any."""
    offline, count = _cpus(value_of(lines, "Off-line CPU(s) list")), _count(lines, "CPU(s)")
    if isinstance(online, Missing):
        return online
    if not isinstance(offline, Missing):
        return CpuSet(online | offline)
    return online if count == len(online) else missing("the report does not say whether CPUs are offline")


def _cores(lines: Lines, sockets: Fact[int], online: Fact[CpuSet], present: Fact[CpuSet]) -> tuple[Fact[int], Fact[bool]]:
    """Return the cores, and whether they have several threads. lscpu counts both at the first core: where CPUs are offline, and where the cores are of two
    kinds, that is no count of the machine's, as the number of CPUs shows. On an arm machine without ACPI's or SMBIOS' sockets it counts by clusters."""
    cores, threads = (_count(lines, key) for key in ("Core(s) per socket", "Thread(s) per core"))
    if isinstance(cores, Missing):
        cores, sockets = _count(lines, "Core(s) per cluster"), _count(lines, "Cluster(s)")
    smt = threads if isinstance(threads, Missing) else threads > 1
    if isinstance(cores, Missing) or isinstance(sockets, Missing) or isinstance(threads, Missing):
        return next(filter(lambda fact: isinstance(fact, Missing), (cores, sockets)), missing()), smt
    listed = known(present, known(online, CpuSet()))
    if not listed or (sockets * cores * threads == len(listed) and listed == known(online, listed)):
        return sockets * cores, smt
    doubtful = missing(f"{sockets * cores * threads} CPUs by sockets, cores and threads, {len(listed)} by their list")
    return doubtful, smt or doubtful


def numa_facts(text: str) -> NumaFacts | None:
    """Return the nodes with their CPUs; None where no line tells of one.

    >>> found = numa_facts("NUMA node(s):      2\\nNUMA node0 CPU(s): 0-3,8\\nNUMA node1 CPU(s): 4-7\\n")
    >>> [(node.id, str(node.cpus)) for node in found.nodes]
    [(0, '0-3,8'), (1, '4-7')]
    """
    nodes: dict[int, NumaNode] = {}
    for found in _NODE.finditer(text) if "NUMA node" in text else ():
        number = int(found[1])
        if number not in nodes:
            cpus = _cpus(found[2])
            nodes[number] = NumaNode(id=number, cpus=cpus, memory_bytes=missing(), free_bytes=missing(), distances=missing())
    return partly(NumaFacts, nodes=tuple(nodes[number] for number in sorted(nodes))) if nodes else None


def _count(lines: Lines, key: str) -> Fact[int]:
    """lscpu prints 0 for what its kernel does not tell (containers of old hosts)."""
    value = value_of(lines, key)
    if isinstance(value, Missing):
        return value
    return natural(value, 8) or missing(f"not a number of {key}: {value[:40]!r}")


def _cpus(value: Fact[str]) -> Fact[CpuSet]:
    if isinstance(value, Missing):
        return value
    try:
        return CpuSet.parse(value[:_LONGEST])
    except ValueError as error:
        return missing(str(error)[:100])


_AVX = pattern(r"avx2?$|avx(?:512\w+|10\w*|_\w+)$")


def flags_of(words: str) -> Fact[frozenset[str]]:
    """Return the flags, where the line holds enough of them to be whole. AVX-512 implies AVX2, and that AVX (Intel SDM, volume 1, 15.2.1); a paste may
    have glued one of them to its neighbour.

    >>> sorted(flags_of("fpu avx512f sse") - {"fpu", "sse"}), "avx2" in flags_of("fpu bmi1avx2 smep"), "avx2" in flags_of("fpu avx2smep")
    (['avx', 'avx2', 'avx512f'], True, True)
    """
    found = set(words.split())
    if not {"fpu", "asimd"} & found:
        return missing("the flags are not whole")
    for word in list(found):
        if _AVX.match(word):
            continue
        found.update(flag for flag in ("avx", "avx2") if word.endswith(flag) or (flag == "avx2" and word.startswith(flag)))
    if any(word.startswith("avx512") for word in found):
        found.add("avx2")
    if "avx2" in found:
        found.add("avx")
    return frozenset(found)
