"""Kernel settings: the running value, and which file set it."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.sysctl import boot, extreme, kernel, network, tcp

RULES = rules_of(kernel, extreme, tcp, network, boot)
