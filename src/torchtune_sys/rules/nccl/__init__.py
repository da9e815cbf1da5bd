"""NCCL's choice of network interfaces, and its other settings."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.nccl import interfaces, settings

RULES = rules_of(interfaces, settings)
