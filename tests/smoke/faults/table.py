"""All faults."""

from __future__ import annotations

from smoke.faults import calculating, differing, exchanging, feeding, hosting, installing, keeping
from smoke.faults.row import Fault

FAULTS: tuple[Fault, ...] = (
    *calculating.ROWS,
    *feeding.ROWS,
    *hosting.ROWS,
    *exchanging.ROWS,
    *differing.ROWS,
    *keeping.ROWS,
    *installing.ROWS,
)
