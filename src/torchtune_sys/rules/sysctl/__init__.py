"""Kernel settings: the running value, and which file set it."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.sysctl import boot, extreme, kernel, network, tcp

RULES: tuple[Rule, ...] = (*kernel.RULES, *extreme.RULES, *tcp.RULES, *network.RULES, *boot.RULES)
