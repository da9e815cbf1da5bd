"""Packages that may change under a job, the next boot, and container runtimes."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.software import containers, next_boot, packages, session

RULES = rules_of(packages, next_boot, containers, session)
