"""The host's own name and its network links."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules import rdma
from torchtune_sys.rules.network import counters, ethernet, hostname, interrupts, loopback, shaping

RULES = (*rules_of(hostname, ethernet, counters, interrupts, loopback, shaping), *rdma.RULES)
