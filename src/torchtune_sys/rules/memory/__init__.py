"""Main memory, swap, huge pages."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.memory import faults, main_memory, shared_memory

RULES = rules_of(shared_memory, main_memory, faults)
