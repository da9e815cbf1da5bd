"""Kernel settings: the running value, and which file set it."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.sysctl import boot, extreme, network, tcp
from torchtune_sys.rules.sysctl.kernel import (
    dirty_limit_huge,
    file_table_small,
    free_memory_reserve_huge,
    max_map_count_low,
    numa_balancing_enabled,
    overcommit_strict,
    shmmax_lowered,
    swappiness_high,
    task_table_small,
    zone_reclaim_enabled,
)

RULES: tuple[Rule, ...] = (
    swappiness_high,
    zone_reclaim_enabled,
    numa_balancing_enabled,
    overcommit_strict,
    max_map_count_low,
    dirty_limit_huge,
    file_table_small,
    task_table_small,
    shmmax_lowered,
    free_memory_reserve_huge,
    *extreme.RULES,
    *tcp.RULES,
    *network.RULES,
    *boot.RULES,
)
