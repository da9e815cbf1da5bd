"""Operating system, kernel and its boot arguments, C library, kind of machine."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.system import boot_arguments, platform

RULES = rules_of(platform, boot_arguments)
