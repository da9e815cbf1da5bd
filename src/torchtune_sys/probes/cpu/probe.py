"""Processors, and how many of them this session may use."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable
from typing import TypeVar

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host, interpreted
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes import cgroup, topology
from torchtune_sys.probes.cpu import cpuinfo, frequency
from torchtune_sys.probes.cpumask import parse_list

STATUS = "/proc/self/status"

_One = TypeVar("_One")
_Other = TypeVar("_Other")


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
    stolen, busy = _pair(host, _STAT, parse_times)
    periods, throttled = _throttling(host, source)
    nice, scheduling = _pair(host, _OWN_STAT, parse_priority)
    weight = _weight(host)
    clock, lowest_clock = frequency.clock(host)
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
        caps=frequency.caps(host),
        pstate_max_pct=host.number(f"{topology.CPUS}/intel_pstate/max_perf_pct"),
        clock_khz=clock,
        lowest_clock_khz=lowest_clock,
        stolen_s=stolen,
        busy_s=busy,
        quota_periods=periods,
        quota_throttled=throttled,
        nice=nice,
        scheduling=scheduling,
        idle_group=_idle_group(host),
        weight=weight[0],
        weight_source=weight[1],
    )


def allowed(host: Host) -> Fact[CpuSet]:
    """Return the CPUs that the session may run on: sched_getaffinity, or what /proc/self/status says of it."""
    answer = host.ask(queries.AFFINITY)
    if isinstance(answer, Missing):
        text = host.text(STATUS)
        answer = answer if isinstance(text, Missing) else status_field(text, "Cpus_allowed_list")
    return interpreted(answer if isinstance(answer, Missing) else str(answer), CpuSet.parse, queries.AFFINITY)


def status_field(text: str, name: str) -> Fact[str]:
    """Return one field of /proc/self/status.

    >>> status_field("Name:\\tcat\\nCpus_allowed_list:\\t0-3\\n", "Cpus_allowed_list")
    '0-3'
    """
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return line[len(name) + 1 :].strip()
    return Missing(Why.ABSENT, STATUS, f"no line {name}")


_STAT = "/proc/stat"
_TICKS_PER_S = 100
"""USER_HZ, which is 100 on every architecture that torch runs on (Documentation/filesystems/proc.rst, 1.7)."""


def _pair(host: Host, path: str, parse: Callable[[str], tuple[_One, _Other]]) -> tuple[Fact[_One], Fact[_Other]]:
    """Return the two facts that a file tells; ``parse`` may raise ValueError."""
    text = host.text(path)
    if isinstance(text, Missing):
        return text, text
    try:
        return parse(text)
    except ValueError as error:
        unparsed = Missing(Why.UNPARSED, path, str(error)[:80])
        return unparsed, unparsed


def parse_times(text: str) -> tuple[float, float]:
    """Return the stolen and the used processor time of all CPUs in seconds. Raises ValueError without a line that tells them.

    Fields: user nice system idle iowait irq softirq steal guest guest_nice; the last two are part of the first two.

    >>> parse_times("cpu  100 0 200 900 7 0 100 400 50 0\\ncpu0 1 2 3\\n")
    (4.0, 4.0)
    """
    words = text.partition("\n")[0].split()
    times = [each for word in words[1:9] if (each := natural(word)) is not None]
    if words[:1] != ["cpu"] or len(times) < 8:
        raise ValueError(f"not the times of all processors: {text[:60]!r}")
    user, nice, system, _idle, _iowait, irq, softirq, steal = times
    return steal / _TICKS_PER_S, (user + nice + system + irq + softirq) / _TICKS_PER_S


def _throttling(host: Host, quota_source: str) -> tuple[Fact[int], Fact[int]]:
    """Return nr_periods and nr_throttled of the group whose quota is the tightest; both versions of cgroups call them so."""
    if not quota_source:
        unlimited = Missing(Why.ABSENT, "cpu.stat", "no CPU quota")
        return unlimited, unlimited
    path = f"{quota_source.rpartition('/')[0]}/cpu.stat"
    return _pair(host, path, parse_throttling)


def parse_throttling(stat: str) -> tuple[int, int]:
    """Return nr_periods and nr_throttled of cpu.stat. Raises ValueError where they are not there.

    >>> parse_throttling("usage_usec 5\\nnr_periods 40\\nnr_throttled 3\\n")
    (40, 3)
    """
    periods, throttled = cgroup.counter(stat, "nr_periods"), cgroup.counter(stat, "nr_throttled")
    if periods is None or throttled is None:
        raise ValueError("no lines nr_periods and nr_throttled")
    return periods, throttled


_OWN_STAT = "/proc/self/stat"
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}
"""include/uapi/linux/sched.h"""


def parse_priority(stat: str) -> tuple[int, str]:
    """Return the nice value and the policy, fields 19 and 41 of proc_pid_stat(5). Raises ValueError where there are not so many.

    >>> parse_priority("7 (a) b) S " + " ".join(["0"] * 15) + " 19 " + " ".join(["0"] * 21) + " 5 0 0")
    (19, 'idle')
    """
    words = stat.rpartition(")")[2].split()
    if len(words) < 39:
        raise ValueError(f"not a process: {stat!r:.60}")
    number = int(words[38])
    return int(words[16]), _POLICIES.get(number, f"policy {number}")


_WEIGHT_FILES = {2: ("cpu.weight",), 1: ("cpu.shares",)}
_USUAL_WEIGHT = {"cpu.weight": 100, "cpu.shares": 1024}
"""What a new group has (Documentation/admin-guide/cgroup-v2.rst; kernel/sched/sched.h, NICE_0_LOAD)."""


def _weight(host: Host) -> tuple[Fact[float], str]:
    least, source = cgroup.tightest(host, "cpu", _WEIGHT_FILES, lambda texts: int(texts[0]))
    if isinstance(least, Missing):
        return least, ""
    share = least / _USUAL_WEIGHT[posixpath.basename(source)] if source else 1.0
    return min(share, 1.0), source if share < 1.0 else ""


def _idle_group(host: Host) -> Fact[str]:
    """cpu.idle is 0 or 1, in both versions of cgroups since Linux 5.15 (Documentation/admin-guide/cgroup-v2.rst)."""
    files = ("cpu.idle",)
    least, source = cgroup.tightest(host, "cpu", {1: files, 2: files}, lambda texts: -float(int(texts[0])))
    if isinstance(least, Missing):
        return least
    return source if least < 0 else ""


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
    return interpreted(text, parse_list, path)
