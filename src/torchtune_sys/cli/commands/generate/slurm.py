"""``torchtune-sys generate slurm``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.preflight import DRAIN_LIMIT, DRAIN_WINDOW_S
from torchtune_sys.cli.terminal import environment, give, tell
from torchtune_sys.cli.watch import ISOLATE_BUDGET_S, PREFLIGHT_BUDGETS_S
from torchtune_sys.errors import UserError
from torchtune_sys.host.trust import distrust

PIECES = ("prolog", "epilog", "task-prolog", "health-check", "batch", "conf")
_DRAINING = ("prolog", "epilog", "health-check")
_CHECKING = (*_DRAINING, "batch")
_USED_BY = {
    "tool": (*_CHECKING, "task-prolog"),
    "budget": PIECES,
    "level": (*_CHECKING, "conf"),
    **dict.fromkeys(("policy", "site_checks", "python"), _CHECKING),
    **dict.fromkeys(("drain_state", "drain_limit", "drain_window"), _DRAINING),
    "isolate": ("batch",),
}
"""Option → the pieces that use it, if not all do."""


@shared.command(
    "slurm",
    common=("--tool", "--level", "--policy", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate slurm prolog --tool /usr/local/bin/torchtune-sys -o /etc/slurm/prolog.d/50-torchtune-sys.sh
  torchtune-sys generate slurm batch --tool /shared/bin/torchtune-sys -o preflight.sbatch
  TORCHTUNE_SYS_NODES=8 sbatch -N 10 preflight.sbatch python train.py
  torchtune-sys generate slurm batch --tool /shared/bin/torchtune-sys --isolate -o preflight.sbatch
  torchtune-sys generate slurm conf

\b
Make the scripts executable. Only no-go drains a node. If the tool is missing,
broken, too slow or cannot judge, the job starts on the node: no node is
drained, and the log says why. These scripts have no --fail-closed.
Without --drain-state the scripts ask Slurm how many nodes they have drained.
The task prolog sets environment and placement. batch checks the nodes of a
job, leaves out bad ones within the spare count, and starts the program.
""",
)
@click.argument("piece", type=click.Choice(PIECES), metavar="PIECE")
@click.option("--tool", metavar="PATH", help="Path of torchtune-sys on the nodes. [this one]")
@click.option("--policy", metavar="FILE", help="Path of the policy file on the nodes.")
@click.option("--site-checks", metavar="DIR", help="Directory of site checks on the nodes.")
@click.option("--level", type=click.Choice(tuple(PREFLIGHT_BUDGETS_S)), help="Level of preflight. [fast]")
@click.option("--python", metavar="PATH", help="With --level standard: interpreter on the nodes that you train with.")
@click.option(
    "--budget",
    type=float,
    callback=shared.seconds(1),
    metavar="S",
    help="Time limit of one check, in seconds. [15; at level standard 60]",
)
@click.option("--isolate", is_flag=True, help="batch: also find bad nodes and links among the job's nodes, in up to 360 s.")
@click.option("--drain-state", metavar="DIR", help="Directory shared by all nodes, where drained nodes are counted. [ask Slurm]")
@click.option("--drain-limit", type=shared.COUNT, metavar="N", help="Drain at most N nodes within the window. [4]")
@click.option(
    "--drain-window", type=float, callback=shared.seconds(1), metavar="S", help="Length of the window in seconds. [3600]"
)
@shared.output_option
def command(piece: str, output: str | None, **options: Any) -> int:
    """Print a Slurm script that checks nodes, or the lines for slurm.conf.

    PIECE: prolog, epilog, task-prolog, health-check, batch, or conf.
    """
    from torchtune_sys.render.generate import slurm

    shared.refuse_without_effect(piece, _USED_BY, harmless=[name for name in _USED_BY if name != "isolate"])
    budget_s = options["budget"] or PREFLIGHT_BUDGETS_S[options["level"] or "fast"]
    if piece == "conf":
        give(slurm.conf(_running(), budget_s), output)
        return 0
    _must_be_absolute(options)
    shared_ = options["drain_state"]
    named = ("policy", "site_checks", "level", "python", *(("drain_state", "drain_limit", "drain_window") if shared_ else ()))
    words = [
        word
        for name in named
        if options[name] is not None
        for word in (_flag(name), options[name] if isinstance(options[name], str) else f"{options[name]:g}")
    ]
    drain = None if shared_ else (options["drain_limit"] or DRAIN_LIMIT, int(options["drain_window"] or DRAIN_WINDOW_S))
    if piece == "health-check" and budget_s > slurm.HEALTH_CHECK_AT_MOST_S:
        budget_s = slurm.HEALTH_CHECK_AT_MOST_S
        tell(f"torchtune-sys: slurmd ends a health check after 60 s, draining included, so that its budget is {budget_s:g} s")
    isolate_s = ISOLATE_BUDGET_S if options["isolate"] else 0.0
    tool = options["tool"] or _this_tool()
    give(slurm.script(piece, tool, budget_s, words, drain, _slurm_folder(), isolate_s), output, program=True)
    return 0


def _must_be_absolute(options: Mapping[str, Any]) -> None:
    """Raise UserError for a path that depends on where the script is started: slurmd starts it somewhere else."""
    for name in ("tool", "policy", "site_checks", "python", "drain_state"):
        path = options[name]
        if path is not None and not path.startswith("/"):
            todo = "give an absolute path that is the same on every node"
            raise UserError(f"{_flag(name)} {path}: Slurm starts the script in a directory of its own", todo)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _this_tool() -> str:
    """Return the absolute path by which this process was started."""
    found = os.path.abspath(sys.argv[0])
    if not os.access(found, os.X_OK) or os.path.basename(found) == "__main__.py":
        raise UserError("a hook needs the tool's path on every node", "name it: --tool /usr/local/bin/torchtune-sys")
    return found


def _slurm_folder() -> str:
    """Where Slurm's commands lie, if that is a place of its own (/opt/slurm/bin) in which nobody but root writes; else ``""``."""
    for folder in environment().get("PATH", "").split(":"):
        program = os.path.join(folder, "scontrol")
        if folder.startswith("/") and os.access(program, os.X_OK):
            return "" if folder.startswith(("/usr/", "/bin", "/sbin")) or distrust(program) else folder
    return ""


def _running() -> dict[str, str] | None:
    """Return the configuration of the cluster that this host belongs to; None where scontrol is not there or does not answer."""
    from torchtune_sys.host.live import LiveHost
    from torchtune_sys.model.values import Missing
    from torchtune_sys.render.generate.slurm import parse_config

    folder = _slurm_folder()
    found = LiveHost().run((f"{folder}/scontrol" if folder else "scontrol", "show", "config"))
    return None if isinstance(found, Missing) or found.rc != 0 else parse_config(found.stdout)
