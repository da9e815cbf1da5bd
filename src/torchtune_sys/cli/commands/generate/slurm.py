"""``torchtune-sys generate slurm``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys.cli import options as shared

PIECES = ("prolog", "health-check", "conf")
_BUDGET_S = 15.0


@click.command(
    "slurm",
    epilog="""\b
Examples:
  torchtune-sys generate slurm prolog -o /etc/slurm/prolog.d/50-torchtune-sys.sh
  torchtune-sys generate slurm health-check -o /etc/slurm/torchtune-sys-health-check.sh
  torchtune-sys generate slurm conf               (compared with what scontrol shows)
  torchtune-sys generate slurm prolog --policy /etc/torchtune-sys/policy.toml --drain-state /shared/torchtune-sys

\b
Make the scripts executable. Only no-go drains a node; a tool that is gone,
broken, late or cannot judge drains nobody, and the log says why.
""",
)
@click.argument("piece", type=click.Choice(PIECES), metavar="prolog|health-check|conf")
@click.option("--tool", metavar="PATH", help="Where the tool lies on the nodes. [this one]")
@click.option("--policy", metavar="FILE", help="The policy file on the nodes.")
@click.option("--site-checks", metavar="DIR", help="The directory of the site's own checks on the nodes.")
@click.option(
    "--budget", type=float, callback=shared.seconds(1), default=_BUDGET_S, metavar="S", help="Seconds for one check. [15]"
)
@click.option("--drain-state", metavar="DIR", help="A directory that all nodes share: limits how many are drained.")
@click.option("--drain-limit", type=shared.COUNT, metavar="N", help="At most N nodes within the window. [4]")
@click.option("--drain-window", type=float, callback=shared.seconds(1), metavar="S", help="The window, in seconds. [3600]")
@shared.output_option
def command(piece: str, output: str | None, **options: Any) -> int:
    """Print a hook of Slurm that judges a node, or the lines of slurm.conf that the hooks need."""
    from torchtune_sys.cli.terminal import give
    from torchtune_sys.render.generate import slurm

    if piece == "conf":
        give(slurm.conf(_running()), output)
        return 0
    words = [word for name in ("policy", "site_checks", "drain_state") if options[name] for word in (_flag(name), options[name])]
    words += [
        word
        for name in ("drain_limit", "drain_window")
        if options[name] is not None
        for word in (_flag(name), f"{options[name]:g}")
    ]
    give(slurm.hook(piece, options["tool"] or _this_tool(), options["budget"], words), output)
    return 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _this_tool() -> str:
    """The absolute path by which this process was started."""
    import os
    import sys

    from torchtune_sys.errors import UserError

    found = os.path.abspath(sys.argv[0])
    if not os.access(found, os.X_OK) or os.path.basename(found) == "__main__.py":
        raise UserError("the tool was not started by a path that a hook could use", "--tool /usr/local/bin/torchtune-sys")
    return found


def _running() -> dict[str, str] | None:
    """The configuration of the cluster that this host belongs to; None where scontrol is not there or does not answer."""
    from torchtune_sys.host.live import LiveHost
    from torchtune_sys.model.values import Missing
    from torchtune_sys.render.generate.slurm import parse_config

    found = LiveHost().run(("scontrol", "show", "config"))
    return None if isinstance(found, Missing) or found.rc != 0 else parse_config(found.stdout)
