"""``PYTHONPATH=tests:tests/nvml:tests/cli python -m live_faults NUMBER [NAME …]``: a line for each fault of that list, as :mod:`live_faults.lab` grades it.

Needs root, and in ``TORCHTUNE_SYS_TEST_TORCH`` a Python with torch for CPUs.
"""

from __future__ import annotations

import sys

from live_faults.lab import main
from live_faults.lists import by_number

lists = {str(number): rows for number, rows in by_number().items()}
if len(sys.argv) < 2 or sys.argv[1] not in lists:
    sys.exit(f"name a list: {', '.join(lists)}")
main(lists, sys.argv[1], sys.argv[2:])
