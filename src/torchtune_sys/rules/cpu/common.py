"""Count the session's CPUs, and the threads and processes that the job would run on them."""

from __future__ import annotations

import math

import msgspec

from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known, need
from torchtune_sys.rules.openmp import refused


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    cpus: float
    """CPUs that the session may use at once; where not exact, certainly no more than these."""
    exact: Missing | None = None
    """Why the number is only an upper bound: what could not be seen (the quota, mostly)."""
    source: str = ""

    def settle(self) -> None:
        """Stop the rule as unknown where only the upper bound is known. To be called when that bound does not decide."""
        if self.exact is not None:
            need(self.exact)


def budget(s: Snapshot) -> Budget:
    """Return the session's CPUs."""
    cpu = need(s.cpu)
    if not isinstance(cpu.effective, Missing):
        limited = not isinstance(cpu.quota, Missing) and cpu.quota <= cpu.effective
        return Budget(cpus=cpu.effective, source=cpu.quota_source if limited else "sched_getaffinity")
    bounds = [float(len(found)) for found in (cpu.affinity, cpu.cpuset, cpu.online) if not isinstance(found, Missing)]
    if not isinstance(cpu.quota, Missing):
        bounds.append(cpu.quota)
    finite = [bound for bound in bounds if bound > 0 and math.isfinite(bound)]
    if not finite:
        need(cpu.effective)
    return Budget(cpus=min(finite), exact=cpu.effective, source="/sys/devices/system/cpu/online")


def show(cpus: float) -> str:
    """Return a number of CPUs: ``show(2.5) == "2.5"``, ``show(4.0) == "4"``"""
    return f"{cpus:.2f}".rstrip("0").rstrip(".")


def some(number: float, word: str) -> str:
    """Return a number with its noun: ``some(1, "CPU") == "1 CPU"``, ``some(2.5, "CPU") == "2.5 CPUs"``"""
    return f"{show(number)} {word}{'' if number == 1 else 's'}"


def asked_threads(s: Snapshot) -> tuple[int, str] | None:
    """Return the threads per rank that somebody set, and where; None where nobody did."""
    env = s.session if isinstance(s.session, Missing) else s.session.env
    value = "" if isinstance(env, Missing) else env.get("OMP_NUM_THREADS", "")
    # A list (OMP_NUM_THREADS=4,2) gives the levels of nested regions; torch uses the first.
    first = natural(value.split(",")[0].strip(), digits=5)
    if s.intent.threads is not None:
        return max(s.intent.threads, 1), "OMP_NUM_THREADS" if first == s.intent.threads else "--threads"
    need(need(s.session).env)
    return (first, "OMP_NUM_THREADS") if first and not refused("OMP_NUM_THREADS", value) else None


def unasked_threads(s: Snapshot) -> tuple[int, str]:
    """Return the threads per rank where nobody set a number, and who decides: torchrun sets 1 for several ranks, unless the variable is there."""
    value = need(need(s.session).env).get("OMP_NUM_THREADS")
    if value is not None:
        return default_threads(need(s.cpu)), f"torch's default, as OpenMP refuses OMP_NUM_THREADS={value}"
    if (s.intent.ranks or 1) > 1:
        return 1, "torchrun's default"
    return default_threads(need(s.cpu)), "torch's default"


def default_threads(cpu: CpuFacts) -> int:
    """Return the threads that torch takes on its own: one per physical core that the affinity shows; the quota is not looked at.

    Source: torch ParallelOpenMP.cpp takes MKL's number; torch._utils.cpu_count of 2.15 reads the affinity only.
    """
    visible = len(need(cpu.affinity))
    online, cores = known(cpu.online, None), known(cpu.cores, None)
    if online is None or cores is None or not len(online):
        return visible
    return max(round(visible * cores / len(online)), 1)
