"""What data and checkpoints lie on, from the path down to the disk."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.storage import access, devices, gone, nfs, space, temporary, tuning

RULES = rules_of(devices, gone, access, space, temporary, tuning, nfs)
