"""Processors, and how many of them this session may use."""

from __future__ import annotations

import math

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes import cgroup, topology
from torchtune_sys.probes.cpu import cpuinfo, frequency

STATUS = "/proc/self/status"


def probe(host: Host, intent: Workload) -> CpuFacts:
    info = host.text(cpuinfo.PATH)
    online = topology.online_cpus(host)
    sockets: Fact[int]
    cores: Fact[int]
    smt: Fact[bool]
    if isinstance(online, Missing):
        sockets, cores, smt = online, online, online
    else:
        kinds = frozenset() if isinstance(info, Missing) else cpuinfo.core_kinds(info)
        # No machine with several kinds of Arm cores has several sockets: these are the clusters that old kernels take for packages.
        sockets = 1 if len(kinds) > 1 else topology.sockets(host, online)
        cores, smt = topology.cores(host, online)
    affinity = allowed(host)
    cpuset = _cpuset(host)
    quota, source = cgroup.tightest(host, "cpu", QUOTA_FILES, parse_quota)
    return CpuFacts(
        model=info if isinstance(info, Missing) else cpuinfo.parse_model(info),
        online=online,
        present=topology.present_cpus(host),
        sockets=sockets,
        cores=cores,
        smt=smt,
        smt_control=host.word(f"{topology.CPUS}/smt/control"),
        flags=info if isinstance(info, Missing) else cpuinfo.parse_flags(info),
        policies=frequency.policies(host, online),
        affinity=affinity,
        cpuset=cpuset,
        quota=quota,
        quota_source=source,
        effective=effective(online, affinity, cpuset, quota),
        boost=frequency.boost(host),
    )


def allowed(host: Host) -> Fact[CpuSet]:
    """Return the CPUs that the session may run on: sched_getaffinity, or what /proc/self/status says of it."""
    answer = host.ask(queries.AFFINITY)
    if isinstance(answer, Missing):
        text = host.text(STATUS)
        answer = answer if isinstance(text, Missing) else status_field(text, "Cpus_allowed_list")
    if isinstance(answer, Missing):
        return answer
    try:
        return CpuSet.parse(str(answer))
    except (ValueError, OverflowError) as error:
        return Missing(Why.UNPARSED, queries.AFFINITY, str(error)[:120])


def status_field(text: str, name: str) -> Fact[str]:
    """Return one field of /proc/self/status.

    >>> status_field("Name:\\tcat\\nCpus_allowed_list:\\t0-3\\n", "Cpus_allowed_list")
    '0-3'
    """
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return line[len(name) + 1 :].strip()
    return Missing(Why.ABSENT, STATUS, f"no line {name}")


QUOTA_FILES = {2: ("cpu.max",), 1: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}


def parse_quota(texts: tuple[str, ...]) -> float:
    """Return the CPUs that a cgroup may use: quota ÷ period, ``inf`` if unlimited. Raises ValueError.

    >>> parse_quota(("400000 100000\\n",)), parse_quota(("max 100000\\n",)), parse_quota(("-1\\n", "100000\\n"))
    (4.0, inf, inf)
    """
    words = " ".join(texts).split()
    if not words or len(words) > 2:
        raise ValueError(f"not a CPU quota: {' '.join(texts)[:60]!r}")
    if words[0] in ("max", "-1"):
        return math.inf
    quota_us, period_us = int(words[0]), int(words[1]) if len(words) == 2 else 100_000
    if not (0 < quota_us < 1 << 63 and 0 < period_us < 1 << 63):
        raise ValueError(f"not a CPU quota: {' '.join(words)[:60]!r}")
    return quota_us / period_us


def effective(online: Fact[CpuSet], affinity: Fact[CpuSet], cpuset: Fact[CpuSet], quota: Fact[float]) -> Fact[float]:
    """Return min(len(affinity ∩ cpuset ∩ online), quota). Without the cpuset the affinity stands, since the kernel cuts it by the cpuset.

    >>> effective(CpuSet(range(8)), CpuSet(range(6)), CpuSet(range(4)), 2.5)
    2.5
    """
    if isinstance(affinity, Missing):
        return affinity
    if isinstance(quota, Missing):
        return quota
    usable: CpuSet | frozenset[int] = affinity
    for bound in (online, cpuset):
        if not isinstance(bound, Missing):
            usable = CpuSet(usable & bound)
    return min(float(len(usable)), quota) if len(usable) else Missing(Why.UNPARSED, queries.AFFINITY, "no online CPU is allowed")


_CPUSET_FILES = {
    2: ("cpuset.cpus.effective",),
    1: ("cpuset.effective_cpus", "cpuset.cpus", "effective_cpus", "cpus"),
}
"""Without prefix where the hierarchy is mounted with ``noprefix``, as the old cpuset file system is."""


def _cpuset(host: Host) -> Fact[CpuSet]:
    text, path = cgroup.nearest(host, "cpuset", _CPUSET_FILES)
    if isinstance(text, Missing):
        return text
    try:
        return CpuSet.parse(text.strip("\0 \n"))
    except (ValueError, OverflowError) as error:
        return Missing(Why.UNPARSED, path, str(error)[:120])
