"""RDMA adapters, their ports and addresses."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.rdma import access, adapters, congestion, health

RULES = rules_of(access, adapters, health, congestion)
