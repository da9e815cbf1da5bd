"""Resource limits of the session, tasks of the cgroup, what logind does at logout."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.limits import logout, services, session, stacks, tasks

RULES = rules_of(session, services, tasks, stacks, logout)
