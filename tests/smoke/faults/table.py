"""All faults that the tests try."""

from __future__ import annotations

from smoke.faults import calculating, differing, exchanging, feeding, hosting, installing, keeping, mixed
from smoke.faults.lists import in_tests
from smoke.faults.row import Fault

FAULTS: tuple[Fault, ...] = (
    *calculating.ROWS,
    *mixed.ROWS,
    *feeding.ROWS,
    *hosting.ROWS,
    *exchanging.ROWS,
    *differing.ROWS,
    *keeping.ROWS,
    *installing.ROWS,
    *in_tests(),
)
