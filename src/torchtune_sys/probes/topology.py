"""Sockets, cores and threads among the online CPUs.

Only sets of siblings are compared, never ids: core ids repeat per socket, socket ids may be -1 or sparse, and on POWER and s390
they mean other things. One file per set is read, not one per CPU.
Source: Documentation/ABI/stable/sysfs-devices-system-cpu, Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, fact, need
from torchtune_sys.probes.cpu import cpuinfo
from torchtune_sys.probes.cpumask import read_set

CPUS = "/sys/devices/system/cpu"

_PACKAGE = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
"""The names of Linux 5.3 and later first; the masks are all that kernels before 2.6.26 have."""
_CORE = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")


def online_cpus(host: Host) -> Fact[CpuSet]:
    """Return the CPUs that are online; before 2.6.26, and without /sys, what each CPU's own file or /proc/cpuinfo tells."""
    found = read_set(host, f"{CPUS}/online")
    if not absent_or_unrecorded(found) and (isinstance(found, Missing) or len(found)):
        return found
    nothing = found if isinstance(found, Missing) else Missing(Why.UNPARSED, f"{CPUS}/online", "no CPU is online")
    online = _one_by_one(host)
    present = read_set(host, f"{CPUS}/present")
    if not len(online) or (not isinstance(present, Missing) and online != present):
        return nothing  # "present" is as old as the file that is missing: a part of the machine was recorded
    return online


def _one_by_one(host: Host) -> CpuSet:
    numbers, info = _numbers(host), host.text(cpuinfo.PATH)
    listed = CpuSet() if isinstance(info, Missing) else cpuinfo.parse_processors(info)
    if isinstance(numbers, Missing) or len(listed - CpuSet(numbers)):
        return listed  # a recording may hold the directories of some CPUs
    # The boot CPU often has no such file, since it cannot be taken offline.
    states = {number: host.word(f"{CPUS}/cpu{number}/online") for number in numbers}
    whole = [n for n, state in states.items() if not isinstance(state, Missing) or host.exists(f"{CPUS}/cpu{n}/topology") is True]
    return CpuSet(number for number in whole if states[number] != "0")


def present_cpus(host: Host) -> Fact[CpuSet]:
    """Return the CPUs that are in the machine, online or not."""
    found = read_set(host, f"{CPUS}/present")
    if not absent_or_unrecorded(found):
        return found
    numbers = _numbers(host)
    return found if isinstance(numbers, Missing) or not numbers else CpuSet(numbers)


def sockets(host: Host, online: CpuSet) -> Fact[int]:
    """Return the number of sockets with an online CPU."""
    groups = _groups(host, online, _PACKAGE)
    if isinstance(groups, Missing) or len(groups) < 2:
        return groups if isinstance(groups, Missing) else len(groups)
    # Before Linux 6.0 Arm's kernels took the clusters of a device tree for packages (drivers/base/arch_topology.c). A tree
    # without socket nodes describes one socket (Documentation/devicetree/bindings/cpu/cpu-topology.txt).
    described = host.names("/proc/device-tree/cpus/cpu-map")
    if not isinstance(described, Missing) and not any(name.startswith("socket") for name in described):
        return 1
    return len(groups)


def cores(host: Host, online: CpuSet) -> tuple[Fact[int], Fact[bool]]:
    """Return the physical cores among the online CPUs, and whether one of them runs more than one thread."""
    if host.word(f"{CPUS}/smt/active") == "0":  # Linux 4.19: no core has two online threads
        return len(online), False
    groups = _groups(host, online, _CORE)
    if isinstance(groups, Missing):
        return groups, groups
    return len(groups), any(len(group) > 1 for group in groups)


@fact
def core_sets(host: Host) -> Fact[tuple[CpuSet, ...]]:
    """Return the online hardware threads of each physical core."""
    online = need(online_cpus(host))
    return tuple(CpuSet(group) for group in need(_groups(host, online, _CORE)))


@fact
def _groups(host: Host, online: CpuSet, names: tuple[str, ...]) -> Fact[list[frozenset[int]]]:
    left = list(online)
    if not left:
        return Missing(Why.UNPARSED, f"{CPUS}/online", "no CPU is online")
    folder = f"{CPUS}/cpu{left[0]}/topology"
    offered = need(host.names(folder))
    name = next((name for name in names if name in offered), None)
    if name is None:
        return Missing(Why.ABSENT, folder, f"none of {', '.join(names)}")
    mask = not name.endswith("_list")
    groups: list[frozenset[int]] = []
    seen: set[int] = set()
    for number in left:
        if number in seen:
            continue
        path = f"{CPUS}/cpu{number}/topology/{name}"
        siblings = need(read_set(host, path, mask=mask))
        group = frozenset(sibling for sibling in siblings if sibling in online and sibling not in seen)
        if number not in group:
            return Missing(Why.UNPARSED, path, f"CPU {number} is not among its own siblings")
        groups.append(group)
        seen |= group
    return groups


@fact
def _numbers(host: Host) -> Fact[list[int]]:
    names = need(host.names(CPUS))
    return sorted(int(name[3:]) for name in names if name.startswith("cpu") and name[3:].isdecimal() and len(name) < 10)
