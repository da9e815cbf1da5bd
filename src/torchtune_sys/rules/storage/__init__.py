"""What data and checkpoints lie on, from the path down to the disk."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.storage import access, devices, nfs, space, temporary, tuning

RULES: tuple[Rule, ...] = (*devices.RULES, *access.RULES, *space.RULES, *temporary.RULES, *tuning.RULES, *nfs.RULES)
