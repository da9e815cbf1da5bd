"""``torchtune-sys apply``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys.cli import options as shared


@shared.command(
    "apply",
    common=("--dry-run", "--yes", "--unsafe", "--select", "--prove"),
    epilog="""\b
Examples:
  sudo torchtune-sys apply
  sudo torchtune-sys apply --yes --select sysctl
  sudo torchtune-sys apply --only swappiness-high,thp-never --dry-run
  sudo torchtune-sys apply --unsafe --force
  sudo torchtune-sys apply --prove --python ~/train/.venv/bin/python3

\b
The previous state is written to /var/lib/torchtune-sys and synced before the
first change. Every change is read back, and the same rules judge again at the
end. torchtune-sys undo restores the previous state, even after a crash or a
power cut.

Exit status: 0 all changes made (or none needed); 1 not all: refused, failed,
skipped because jobs run on the GPUs, or you said no; 2 usage error; 3 the
journal is damaged, or facts that decide the changes could not be read in time;
4 internal error; 5 fixed now, but lost at the next boot: what sets it then is
named (1 wins over 5, 5 over 3). Changes that need a decision or a person do not
count.
""",
)
@shared.intent_options
@shared.timeout_option
@shared.selection_options
@shared.profile_options
@click.option(
    "--only",
    multiple=True,
    metavar="RULES",
    shell_complete=shared.complete_rule_lists,
    help="Make only the changes that fix these rules, separated by commas.",
)
@click.option(
    "--safe-only/--unsafe", "safe_only", default=True, help="Skip changes that need a decision (default), or make them too."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the changes, as a plan and a diff; change nothing.")
@click.option("--force", is_flag=True, help="Also make changes that disturb jobs running on the GPUs.")
@click.option("--prove", is_flag=True, help="Run the smoke test before and after, and offer undo if something got worse.")
@shared.wait_option
@shared.format_option("text", "json")
@shared.color_option
def command(**options: Any) -> int:
    """Make the planned changes, read every value back, and run the rules again."""
    from torchtune_sys.cli.apply_run import apply

    return apply(options)
