"""``torchtune-sys generate tuned``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.generate.files import COMMON, plan_options
from torchtune_sys.cli.terminal import give, tell
from torchtune_sys.errors import UserError


@shared.command(
    "tuned",
    common=("--include", "--output-dir", *COMMON),
    epilog="""\b
Examples:
  torchtune-sys generate tuned
  torchtune-sys generate tuned --output-dir / && tuned-adm profile torchtune-sys
  torchtune-sys generate tuned --include accelerator-performance

\b
The profile includes the active one (else throughput-performance) and extends
it. It contains the settings that apply refuses to change because tuned sets
them. To undo, activate the earlier profile with tuned-adm profile NAME.
""",
)
@plan_options
@click.option("--include", metavar="NAME", help="Profile to include. [the active one]")
@click.option("--output-dir", metavar="DIR", help="Write it to its path below DIR, unless another file is there.")
def command(**options: Any) -> int:
    """Print a tuned profile that adds the plan's settings to the active profile."""
    from torchtune_sys.cli.planning import planned
    from torchtune_sys.cli.selection import status_of_looks
    from torchtune_sys.cli.take_snapshot import host_of
    from torchtune_sys.model.actions import KernelArgument, Sysctl, SysfsWrite
    from torchtune_sys.model.plan_context import TunedProfile
    from torchtune_sys.model.values import Why
    from torchtune_sys.probes.plan_context import tuned as probe
    from torchtune_sys.remediation.plan.tuned import options as wanted
    from torchtune_sys.render.generate import tuned, units

    if options["output"] and options["output_dir"]:
        raise UserError("--output and --output-dir are both given", "choose one")
    found = planned(options)
    host, include = host_of(options), options["include"] or ""
    usual = TunedProfile(path="/etc/tuned/torchtune-sys/tuned.conf", include=(include or "throughput-performance",))
    base = usual if host is None else probe.base(host, include)
    gone = base.unread is not None and base.unread.why is Why.ABSENT and f"/{include}/" in base.unread.source
    if include and gone and not options["from_"]:  # a recording need not hold it
        raise UserError(f"tuned has no profile {include!r} here", "tuned-adm list shows those that it has")
    if base.unread is not None:
        tell(f"not all of {', '.join(base.include)} could be read: {base.unread}")
    made = wanted(found.seen, found.results, found.context, base, options["safe_only"])
    for words in made.left_out:
        tell(f"left out: {words}")
    text = tuned.profile(base.include, made.options)
    if not made.options:
        pass
    elif options["output_dir"]:
        from torchtune_sys.host.files import write_below_in_child

        write_below_in_child(options["output_dir"], {base.path: text}, units.MARK)
        tell(f"written: {base.path}")
    else:
        give(text, options["output"])
        tell(f"for {base.path}; then: tuned-adm profile torchtune-sys")
    none = "" if made.options or made.left_out else "no change in the plan concerns tuned"
    return status_of_looks(found.results, lambda action: isinstance(action, Sysctl | SysfsWrite | KernelArgument), nothing=none)
