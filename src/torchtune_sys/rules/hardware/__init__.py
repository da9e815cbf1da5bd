"""The machine's clock, heat and memory modules."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.hardware import machine, memory, services

RULES = rules_of(machine, memory, services)
