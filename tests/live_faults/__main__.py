"""``PYTHONPATH=tests:tests/nvml:tests/cli python -m live_faults opened|sealed|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth [NAME …]``: a line for each fault, as :mod:`live_faults.lab` grades it.

Needs root, and in ``TORCHTUNE_SYS_TEST_TORCH`` a Python with torch for CPUs.
"""

from __future__ import annotations

import sys

from live_faults import (
    eighth,
    eleventh,
    fifth,
    fourteenth,
    fourth,
    ninth,
    opened,
    sealed,
    seventh,
    sixth,
    tenth,
    third,
    thirteenth,
    twelfth,
)
from live_faults.lab import main

main(
    {
        "opened": opened.ROWS,
        "sealed": sealed.ROWS,
        "third": third.ROWS,
        "fourth": fourth.ROWS,
        "fifth": fifth.ROWS,
        "sixth": sixth.ROWS,
        "seventh": seventh.ROWS,
        "eighth": eighth.ROWS,
        "ninth": ninth.ROWS,
        "tenth": tenth.ROWS,
        "eleventh": eleventh.ROWS,
        "twelfth": twelfth.ROWS,
        "thirteenth": thirteenth.ROWS,
        "fourteenth": fourteenth.ROWS,
    },
    sys.argv[1],
    sys.argv[2:],
)
