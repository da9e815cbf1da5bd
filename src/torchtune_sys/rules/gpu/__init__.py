"""Each GPU: on the bus, without uncorrected memory errors, not waiting for a reset, not slowed."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.gpu import amd, board, clocks, imex, links, ranks, use
from torchtune_sys.rules.gpu.health import (
    gpu_ecc_off,
    gpu_ecc_uncorrectable,
    gpu_fallen_off_bus,
    gpu_missing_from_driver,
    gpu_requires_reset,
    gpu_reset_pending,
    gpu_row_remap_failed,
)

RULES: tuple[Rule, ...] = (
    gpu_fallen_off_bus,
    gpu_requires_reset,
    gpu_missing_from_driver,
    gpu_ecc_uncorrectable,
    gpu_row_remap_failed,
    gpu_reset_pending,
    gpu_ecc_off,
    *clocks.RULES,
    *use.RULES,
    *links.RULES,
    *imex.RULES,
    *board.RULES,
    *ranks.RULES,
    *amd.RULES,
)
