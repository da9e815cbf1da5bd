"""The host's own name and its network links."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules import rdma
from torchtune_sys.rules.network import loopback, shaping
from torchtune_sys.rules.network.ethernet import (
    ethernet_link_slow,
    ethernet_mtu_small,
    gloo_and_nccl_differ,
    gloo_interface_doubtful,
    gloo_interface_missing,
    hostname_loopback,
    hostname_unresolvable,
)
from torchtune_sys.rules.network.interrupts import network_interrupts_far

RULES: tuple[Rule, ...] = (
    hostname_loopback,
    hostname_unresolvable,
    gloo_interface_missing,
    gloo_interface_doubtful,
    gloo_and_nccl_differ,
    ethernet_link_slow,
    ethernet_mtu_small,
    network_interrupts_far,
    *loopback.RULES,
    *shaping.RULES,
    *rdma.RULES,
)
