"""``torchtune-sys generate systemd``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.generate.files import COMMON, part_of_plan, plan_options, tell_left_out, undecided
from torchtune_sys.cli.terminal import give, tell
from torchtune_sys.errors import UserError

if TYPE_CHECKING:
    from torchtune_sys.cli.planning import Planned


@shared.command(
    "systemd",
    common=("--unit", "--output-dir", *COMMON),
    epilog="""\b
Examples:
  torchtune-sys generate systemd
  torchtune-sys generate systemd --unit train.service --nproc-per-node 8
  torchtune-sys generate systemd --unit train --output-dir /

\b
Each file is printed below its path, as in systemctl cat. After installing them,
run systemctl daemon-reload and restart the unit. limits.d applies to logins
only, never to a service, so --unit puts the limits into the unit.
""",
)
@plan_options
@click.option("--unit", metavar="NAME", help="Also print a drop-in for your service NAME: limits and environment.")
@click.option("--defaults", is_flag=True, help="Also print default limits for all services (system.conf.d).")
@click.option("--output-dir", metavar="DIR", help="Write each file to its path below DIR, unless another file is there.")
def command(**options: Any) -> int:
    """Print the plan's systemd drop-ins, and one for your own service."""
    from torchtune_sys.cli.planning import planned
    from torchtune_sys.cli.selection import status_of_looks
    from torchtune_sys.model.actions import Action, EnvironmentVariable, Limit, OwnedFile
    from torchtune_sys.render.generate import units

    if options["output"] and options["output_dir"]:
        raise UserError("--output and --output-dir are both given", "choose one")
    path = units.drop_in(options["unit"]) if options["unit"] else ""
    found = planned(options)
    files = {f.path: f.content for f in part_of_plan(options, found).files if f.path.startswith("/etc/systemd/")}
    files.update({name: text for name, text in _own(found, options, path).items() if text})
    more = tell_left_out(undecided(found, options, lambda written: written.startswith("/etc/systemd/")))
    if files and options["output_dir"]:
        from torchtune_sys.host.files import write_below_in_child

        write_below_in_child(options["output_dir"], files, units.MARK)
        tell(*(f"written: {name}" for name in files))
    elif files:
        give(units.together(files), options["output"])

    def holds(action: Action) -> bool:
        limits = isinstance(action, Limit) and bool(path or options["defaults"])
        return limits or isinstance(action, OwnedFile) or bool(path and isinstance(action, EnvironmentVariable))

    hint = "" if options["unit"] else " (--unit NAME prints a drop-in for a service)"
    none = "" if files or more else f"no change in the plan concerns systemd{hint}"
    return status_of_looks(found.results, holds, nothing=none)


def _own(found: Planned, options: dict[str, Any], path: str) -> dict[str, str]:
    """Return what no change of the plan is: the person's own service, the defaults of all."""
    from torchtune_sys.cli.take_snapshot import host_of
    from torchtune_sys.probes.plan_context import allocators
    from torchtune_sys.remediation.plan import job
    from torchtune_sys.remediation.plan.units import limits
    from torchtune_sys.render.generate import units

    wanted = limits(found.results)
    made = {units.DEFAULTS: units.defaults(wanted)} if options["defaults"] else {}
    if path:
        host = host_of(options)
        variables = job.variables(found.seen, found.results, () if host is None else allocators.probe(host))
        made[path] = units.service(wanted, variables)
    return made
