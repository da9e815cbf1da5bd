"""Operating system, kernel, C library, kind of machine."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.system import platform

RULES: tuple[Rule, ...] = (*platform.RULES,)
