"""Main memory, swap, huge pages."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.memory import shared_memory
from torchtune_sys.rules.memory.main_memory import (
    cgroup_memory_far_below_host,
    cgroup_memory_tight,
    host_memory_below_gpu_memory,
    hugepages_hoard_memory,
    memory_available_low,
    oom_kills_since_boot,
    swap_in_use,
    thp_never,
)

RULES: tuple[Rule, ...] = (
    *shared_memory.RULES,
    swap_in_use,
    memory_available_low,
    host_memory_below_gpu_memory,
    cgroup_memory_tight,
    cgroup_memory_far_below_host,
    thp_never,
    hugepages_hoard_memory,
    oom_kills_since_boot,
)
