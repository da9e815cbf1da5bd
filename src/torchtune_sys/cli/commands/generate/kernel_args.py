"""``torchtune-sys generate kernel-args``."""

from __future__ import annotations

from typing import Any

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.generate.files import COMMON, plan_options, tell_left_out
from torchtune_sys.cli.terminal import give, tell

FORMATS = ("line", "grub", "grubby", "rpm-ostree", "kernelstub", "systemd-boot")


@shared.command(
    "kernel-args",
    common=("--format", *COMMON),
    epilog="""\b
Examples:
  torchtune-sys generate kernel-args --unsafe
  torchtune-sys generate kernel-args --unsafe --format grub -o /etc/default/grub.d/99-torchtune-sys.cfg && update-grub
  torchtune-sys generate kernel-args --unsafe --format grubby | sh
  torchtune-sys generate kernel-args --unsafe --format systemd-boot -o args.sh
  sh args.sh && reboot        (and sh args.sh undo removes them)

\b
A kernel argument is a change that needs a decision: without --unsafe it is
named and left out. The arguments take effect after a reboot. The printed commands include their
undo. To undo the file for grub.d, remove it and run update-grub.
""",
)
@plan_options
@shared.format_option(*FORMATS)
def command(**options: Any) -> int:
    """Print the kernel arguments that the plan needs: as a line, a file for grub.d, or commands."""
    from torchtune_sys.cli.planning import planned
    from torchtune_sys.cli.selection import status_of_looks
    from torchtune_sys.model.actions import KernelArgument
    from torchtune_sys.remediation.plan.kernel_arguments import arguments
    from torchtune_sys.render.generate.kernel_args import FORMS

    found = planned(options)
    wanted, refused = arguments(found.seen, found.results, found.context, options["safe_only"])
    for item in refused:
        tell(f"left out: {item.key}: {item.reason}; instead: {item.way}")
    every, _ = arguments(found.seen, found.results, found.context)
    more = tell_left_out(one.key for one in every if one not in wanted)
    if wanted:
        give(FORMS[options["format_"]](wanted), options["output"])
    none = "" if wanted or more or refused else "the plan needs no kernel argument"
    return status_of_looks(found.results, lambda action: isinstance(action, KernelArgument), nothing=none)
