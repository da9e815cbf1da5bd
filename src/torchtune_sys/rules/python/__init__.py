"""The Python interpreter: can it hold a torch."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.python import byte_code, environment_not_executable, interpreter

RULES = rules_of(interpreter, byte_code, environment_not_executable)
