"""NCCL's choice of network interfaces, and its other settings."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.nccl import settings
from torchtune_sys.rules.nccl.interfaces import (
    ib_hca_unmatched,
    ifname_syntax,
    interface_doubtful,
    uneven_networks,
    wrong_interface,
)

RULES: tuple[Rule, ...] = (
    wrong_interface,
    interface_doubtful,
    uneven_networks,
    ifname_syntax,
    ib_hca_unmatched,
    *settings.RULES,
)
