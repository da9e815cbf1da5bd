"""The Python interpreter: can it hold a torch."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.python import byte_code, interpreter

RULES: tuple[Rule, ...] = (*interpreter.RULES, *byte_code.RULES)
