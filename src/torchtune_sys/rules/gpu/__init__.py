"""Each GPU: on the bus, without uncorrected memory errors, not waiting for a reset, not slowed."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.gpu import amd, board, clocks, health, imex, links, modes, ranks, use

RULES: tuple[Rule, ...] = (
    *health.RULES,
    *clocks.RULES,
    *modes.RULES,
    *use.RULES,
    *links.RULES,
    *imex.RULES,
    *board.RULES,
    *ranks.RULES,
    *amd.RULES,
)
