"""Processors and how many of them this session may use."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NOT_READ = Missing(Why.NOT_RECORDED, "/proc/stat", "not read")


class CpuPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One cpufreq policy (``/sys/devices/system/cpu/cpufreq/policyN``)."""

    cpus: CpuSet
    driver: Fact[str]
    governor: Fact[str]
    epp: Fact[str]
    """energy_performance_preference; ABSENT where the driver has none."""
    max_khz: Fact[int]
    """scaling_max_freq."""
    hardware_max_khz: Fact[int]
    """cpuinfo_max_freq; under acpi-cpufreq, whose steps end below the boost frequency that it shows, the highest step."""


class CpuCap(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on a processor package, and what the package is made for."""

    name: str
    """``power of package-0``, ``uncore of package_00_die_00``."""
    now: float
    most: float
    unit: str
    source: str


class CpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    model: Fact[str]
    online: Fact[CpuSet]
    present: Fact[CpuSet]
    sockets: Fact[int]
    cores: Fact[int]
    """Physical cores among the online CPUs."""
    smt: Fact[bool]
    """Whether any online core has more than one online thread."""
    smt_control: Fact[str]
    """smt/control: ``on``, ``off``, ``forceoff``, ``notsupported`` or ``notimplemented``; ABSENT before Linux 4.19."""
    flags: Fact[frozenset[str]]
    """ISA flags common to all processors (``flags`` or ``Features`` of /proc/cpuinfo)."""
    policies: Fact[tuple[CpuPolicy, ...]]
    affinity: Fact[CpuSet]
    """sched_getaffinity of this session."""
    cpuset: Fact[CpuSet]
    """CPUs allowed by the cgroup's cpuset (the effective set)."""
    quota: Fact[float]
    """CPUs allowed by the cgroup's bandwidth limit, the minimum over all ancestors; ``inf`` if unlimited."""
    quota_source: str
    """The file that sets the tightest quota; ``""`` if none does."""
    effective: Fact[float]
    """CPUs that this session may use at once: min(len(affinity ∩ cpuset ∩ online), quota)."""
    boost: Fact[bool]
    """Whether frequency boost (turbo) is on."""
    pstate_max_pct: Fact[int] = _NOT_READ
    """Share of the highest performance that intel_pstate allows; ABSENT with another driver."""
    clock_khz: Fact[int] = _NOT_READ
    """At which the fastest of the first few Intel CPUs runs now (scaling_cur_freq)."""
    lowest_clock_khz: Fact[int] = _NOT_READ
    """To which software may lower it (cpuinfo_min_freq): only heat, a power limit and what holds the processor's PROCHOT pin go below."""
    stolen_s: Fact[float] = _NOT_READ
    """Processor time since boot, all CPUs together, in which the hypervisor ran something else although a task wanted to run here."""
    busy_s: Fact[float] = _NOT_READ
    """Processor time since boot in which tasks ran, in user and kernel mode, all CPUs together."""
    quota_periods: Fact[int] = _NOT_READ
    """Periods of the cgroup with the tightest quota in which it had something to run; ABSENT without a quota."""
    quota_throttled: Fact[int] = _NOT_READ
    """Those of them in which its quota was used up and all its tasks were stopped; ABSENT without a quota."""
    nice: Fact[int] = Missing(Why.NOT_RECORDED, "/proc/self/stat", "not read")
    """Nice value of this session, which what it starts inherits: -20 to 19."""
    scheduling: Fact[str] = Missing(Why.NOT_RECORDED, "/proc/self/stat", "not read")
    """Scheduling policy of this session: ``other``, ``fifo``, ``rr``, ``batch``, ``idle``, ``deadline`` or ``ext``."""
    weight: Fact[float] = Missing(Why.NOT_RECORDED, "cpu.weight", "not read")
    """The least share of the cgroup and those above it, against one that nobody set (cpu.weight 100, cpu.shares 1024): 1.0 is usual."""
    weight_source: str = ""
    """The file that sets the least; ``""`` where none is below the usual."""
    idle_group: Fact[str] = Missing(Why.NOT_RECORDED, "cpu.idle", "not read")
    """The file cpu.idle that puts the cgroup, or one above it, behind all others; ``""`` if none does."""
    caps: Fact[tuple[CpuCap, ...]] = _NOT_READ
    """Long-term power limits (RAPL) and highest uncore frequencies of Intel's packages; ABSENT where the kernel shows neither."""
