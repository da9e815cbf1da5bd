"""The Python interpreter: can it hold a torch."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.python import byte_code, environment_not_executable, interpreter

RULES: tuple[Rule, ...] = (
    *interpreter.RULES,
    *byte_code.RULES,
    *environment_not_executable.RULES,
)
