"""RDMA adapters, their ports and addresses."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.rdma import access, adapters, congestion, health

RULES: tuple[Rule, ...] = (*access.RULES, *adapters.RULES, *health.RULES, *congestion.RULES)
