"""Packages that may change under a job, the next boot, and container runtimes."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.software import containers, next_boot, packages, session

RULES: tuple[Rule, ...] = (*packages.RULES, *next_boot.RULES, *containers.RULES, *session.RULES)
