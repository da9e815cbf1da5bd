"""The host's own name and its network links."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules import rdma
from torchtune_sys.rules.network import ethernet, hostname, interrupts, loopback, shaping

RULES: tuple[Rule, ...] = (*hostname.RULES, *ethernet.RULES, *interrupts.RULES, *loopback.RULES, *shaping.RULES, *rdma.RULES)
