"""Main memory, swap, huge pages."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.memory import main_memory, shared_memory

RULES: tuple[Rule, ...] = (*shared_memory.RULES, *main_memory.RULES)
