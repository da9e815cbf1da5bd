"""``torchtune-sys generate script``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys.cli.generate.files import part_of_plan, plan_options


@click.command(
    "script",
    epilog="""\b
Examples:
  torchtune-sys generate script -o tune.sh && sudo bash tune.sh
  torchtune-sys generate script --from host.json --safe-only | ssh host sudo bash -s
  bash tune.sh --check

\b
The script needs bash 4.3 and coreutils, no Python. It writes the same files as
apply, keeps what was there before, and takes it back with --undo.
""",
)
@plan_options
def command(**options: Any) -> int:
    """Print one bash script that makes the plan's changes, checks them and takes them back."""
    from torchtune_sys.cli.terminal import give, tell
    from torchtune_sys.render.script import script

    plan = part_of_plan(options)
    give(script(plan), options["output"], machine=True)
    if not plan.changes:
        tell("the plan has no change, so the script does nothing")
    return 0
