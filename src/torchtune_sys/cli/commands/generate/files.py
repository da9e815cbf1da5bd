"""The commands that print one file of the plan: ``torchtune-sys generate sysctl`` and its kin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, tell
from torchtune_sys.model import plan_context
from torchtune_sys.model.actions import Action, Limit, ModuleOption, Sysctl, SysfsWrite

if TYPE_CHECKING:
    from torchtune_sys.cli.planning import Planned
    from torchtune_sys.model.plan import Plan


COMMON = ("--from", "--select", "--unsafe", "--output")
"""Options of a command that prints a part of the plan, which its short help explains."""


def plan_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that plans and prints."""
    return shared.together(
        (
            shared.intent_options,
            shared.host_options,
            shared.selection_options,
            shared.profile_options,
            click.option(
                "--safe-only/--unsafe",
                "safe_only",
                default=True,
                help="Skip changes that need a decision (default), or include them.",
            ),
            shared.output_option,
        )
    )(function)


def _command(name: str, path: str, what: str, then: str, holds: Callable[[Action], bool]) -> click.Command:
    """Return the command; ``holds``: whether an action may put lines into the file."""
    epilog = f"""\b
Examples:
  torchtune-sys generate {name}
  torchtune-sys generate {name} --from host.json --unsafe -o {path.rpartition("/")[2]}

\b
{then}
Prints nothing if no change in the plan needs the file.
"""

    @shared.command(name, common=COMMON, help=f"Print {path}: {what}, byte for byte as apply writes it.", epilog=epilog)
    @plan_options
    def command(**options: Any) -> int:
        return _print(path, then, holds, options)

    return command


def part_of_plan(options: dict[str, Any], found: Planned) -> Plan:
    """Return the plan, without what is unsafe if so asked."""
    from torchtune_sys.model.actions import Safety
    from torchtune_sys.remediation import plan as planner

    return planner.part(found.plan, found.context, lambda c: c.safety is Safety.SAFE or not options["safe_only"])


def tell_left_out(keys: Iterable[str]) -> bool:
    """Tell what would be printed with --unsafe, and is not; return whether anything would."""
    named = ", ".join(keys)
    if named:
        tell(f"left out, since it needs a decision (--unsafe includes it): {named}")
    return bool(named)


def undecided(found: Planned, options: dict[str, Any], concerns: Callable[[str], bool] = lambda path: True) -> list[str]:
    """Return the changes that need a decision and were not asked for; of those that write files, where one ``concerns``."""
    from torchtune_sys.model.actions import Safety
    from torchtune_sys.model.plan import FileLine

    unsafe = [change for change in found.plan.changes if change.safety is not Safety.SAFE] if options["safe_only"] else []
    return [
        change.key for change in unsafe if any(concerns(step.path if isinstance(step, FileLine) else "") for step in change.steps)
    ]


def _print(path: str, then: str, holds: Callable[[Action], bool], options: dict[str, Any]) -> int:
    """Say on stderr where the file belongs, or that there is nothing to write."""
    from torchtune_sys.cli.planning import planned
    from torchtune_sys.cli.selection import status_of_looks

    found = planned(options)
    plan = part_of_plan(options, found)
    content = next((file.content for file in plan.files if file.path == path), "")
    if content:
        give(content, options["output"])
        tell(f"for {path}: {' '.join(then.split())}")
    more = tell_left_out(undecided(found, options, lambda written: written == path))
    none = "" if content or more else f"nothing to write to {path}: no change in the plan needs it"
    return status_of_looks(found.results, holds, nothing=none)


def _below_sys(action: Action, *, of_disks: bool) -> bool:
    from torchtune_sys.remediation.plan.persistence import is_of_disk

    return isinstance(action, SysfsWrite) and is_of_disk(action.path) is of_disks


sysctl = _command(
    "sysctl",
    plan_context.SYSCTL_FILE,
    "kernel settings",
    "The kernel settings take effect at boot, or now with: sysctl --system",
    lambda action: isinstance(action, Sysctl),
)
limits = _command(
    "limits",
    plan_context.LIMITS_FILE,
    "resource limits of logins",
    "The limits take effect at the next login. Services never read the file (use\ngenerate systemd --unit), nor do Slurm's daemon and containers (--ulimit memlock=-1).",
    lambda action: isinstance(action, Limit),
)
modprobe = _command(
    "modprobe",
    plan_context.MODPROBE_FILE,
    "options of kernel modules",
    "The options take effect when the module is next loaded. For a module in the\ninitramfs, rebuild that (update-initramfs -u, dracut -f) and reboot.",
    lambda action: isinstance(action, ModuleOption),
)
tmpfiles = _command(
    "tmpfiles",
    plan_context.TMPFILES_FILE,
    "values below /sys that belong to no device",
    f"The values take effect at boot, or now with:\n  systemd-tmpfiles --create {plan_context.TMPFILES_FILE}",
    lambda action: _below_sys(action, of_disks=False),
)
udev = _command(
    "udev",
    plan_context.UDEV_FILE,
    "values of disks",
    "The values take effect when a disk appears, or for all disks now with:\n"
    "  udevadm control --reload && udevadm trigger --subsystem-match=block",
    lambda action: _below_sys(action, of_disks=True),
)
