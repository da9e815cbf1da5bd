"""``torchtune-sys generate smoke``."""

from __future__ import annotations

from typing import Any

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give


@shared.command(
    "smoke",
    epilog="""\b
Examples:
  torchtune-sys generate smoke -o smoke.py && python smoke.py
  torchrun --nproc-per-node 8 smoke.py --level quick
  srun --ntasks-per-node 8 python smoke.py

\b
The script needs only Python 3.8 and torch 2.0. "torchtune-sys smoke" runs the
same script under a driver. Without the driver a hang ends only by torch's own
timeouts, and a pass is not recorded.
""",
)
@shared.output_option
def command(**options: Any) -> int:
    """Print the training smoke test as one script that needs only torch."""
    from torchtune_sys.smoke.script import source

    give(source(), options["output"], machine=True)
    return 0
