"""RDMA adapters, their ports and addresses."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.rdma import access, congestion, health
from torchtune_sys.rules.rdma.adapters import (
    ib_port_down,
    ib_subnet_manager_missing,
    rail_mtu_mismatch,
    rdma_rate_degraded,
    roce_gid_index,
)

RULES: tuple[Rule, ...] = (
    *access.RULES,
    rail_mtu_mismatch,
    ib_port_down,
    ib_subnet_manager_missing,
    rdma_rate_degraded,
    roce_gid_index,
    *health.RULES,
    *congestion.RULES,
)
