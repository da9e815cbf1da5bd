"""DataLoader workers against the CPUs of this session, and starting values."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.dataloader import workers

RULES = rules_of(workers)
