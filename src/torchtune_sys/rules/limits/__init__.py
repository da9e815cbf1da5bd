"""Resource limits of the session, tasks of the cgroup, what logind does at logout."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.limits import logout, services, stacks, tasks
from torchtune_sys.rules.limits.session import (
    address_space_limit,
    cpu_time_limit,
    data_segment_limit,
    file_size_limit,
    memlock_limit_finite,
    memlock_limit_too_low,
    nofile_limit_too_low,
    nofile_soft_limit_low,
)

RULES: tuple[Rule, ...] = (
    memlock_limit_too_low,
    memlock_limit_finite,
    *services.RULES,
    nofile_limit_too_low,
    nofile_soft_limit_low,
    *tasks.RULES,
    *stacks.RULES,
    address_space_limit,
    data_segment_limit,
    file_size_limit,
    cpu_time_limit,
    *logout.RULES,
)
