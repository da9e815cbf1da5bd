"""DataLoader workers against the CPUs of this session, and starting values."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.dataloader import workers

RULES: tuple[Rule, ...] = (*workers.RULES,)
