"""CPUs: how many the job may use, how fast they may run, what they can do."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.cpu import frequency, taken
from torchtune_sys.rules.cpu.available import (
    cpu_lacks_avx,
    cpu_oversubscribed,
    cpu_quota_ignored,
    cpus_offline,
    cpus_too_few,
    openmp_affinity,
    session_pinned,
)

RULES: tuple[Rule, ...] = (
    cpu_oversubscribed,
    cpu_quota_ignored,
    openmp_affinity,
    session_pinned,
    cpus_too_few,
    cpu_lacks_avx,
    cpus_offline,
    *frequency.RULES,
    *taken.RULES,
)
