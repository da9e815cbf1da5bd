"""``torchtune-sys generate smoke``."""

from __future__ import annotations

from typing import Any

from torchtune_sys.cli import options as shared


@shared.command(
    "smoke",
    epilog="""\b
Examples:
  torchtune-sys generate smoke -o smoke.py && python smoke.py
  torchrun --nproc-per-node 8 smoke.py --level quick
  srun --ntasks-per-node 8 python smoke.py

\b
The script needs Python 3.8 and torch 2.0, nothing else. It is what
"torchtune-sys smoke" runs, without its driver: a hang ends by torch's own
time-outs, and nothing is remembered.
""",
)
@shared.output_option
def command(**options: Any) -> int:
    """Print the training smoke test as one script that needs only torch."""
    from torchtune_sys.cli.terminal import give
    from torchtune_sys.smoke.script import source

    give(source(), options["output"], machine=True)
    return 0
