"""The machine's clock, heat and memory modules."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.hardware import machine, memory, services

RULES: tuple[Rule, ...] = (*machine.RULES, *memory.RULES, *services.RULES)
