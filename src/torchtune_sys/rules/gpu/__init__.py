"""Each GPU: on the bus, without uncorrected memory errors, not waiting for a reset, not slowed."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.gpu import amd, board, clocks, health, imex, links, modes, ranks, use

RULES = rules_of(health, clocks, modes, use, links, imex, board, ranks, amd)
