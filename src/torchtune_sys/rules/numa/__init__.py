"""NUMA: where memory, CPUs and GPUs lie, and what the session may use of them."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.numa import locality

RULES: tuple[Rule, ...] = (*locality.RULES,)
