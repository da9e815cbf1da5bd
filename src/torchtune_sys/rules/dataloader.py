"""placeholder"""

from __future__ import annotations

from torchtune_sys.model.rule import Rule

RULES: tuple[Rule, ...] = ()
