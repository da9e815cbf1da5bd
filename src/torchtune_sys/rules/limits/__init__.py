"""Resource limits of the session, tasks of the cgroup, what logind does at logout."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.limits import logout, services, session, stacks, tasks

RULES = (
    session.memlock_limit_too_low,
    session.memlock_limit_finite,
    *rules_of(services),
    session.nofile_limit_too_low,
    session.nofile_soft_limit_low,
    *rules_of(tasks, stacks),
    session.address_space_limit,
    session.data_segment_limit,
    session.file_size_limit,
    session.cpu_time_limit,
    *rules_of(logout),
)
