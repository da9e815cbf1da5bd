"""DataLoader workers against the CPUs of this session, and starting values."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.dataloader.workers import no_cpu_left, without_workers, workers_exceed_cpus

RULES: tuple[Rule, ...] = (workers_exceed_cpus, without_workers, no_cpu_left)
