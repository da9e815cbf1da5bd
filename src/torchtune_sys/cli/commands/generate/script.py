"""``torchtune-sys generate script``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.generate.files import part_of_plan, plan_options, tell_left_out, undecided
from torchtune_sys.cli.described import description_options
from torchtune_sys.cli.install_options import install_options, install_options_of, must_start, tell_refused
from torchtune_sys.cli.terminal import give

if TYPE_CHECKING:
    from torchtune_sys.model.provision import Provision

VENV = "/opt/torch"
STAGES = ("install", "tune", "smoke")


@shared.command(
    "script",
    common=("--from", "--stages", "--select", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate script -o tune.sh && sudo bash tune.sh
  torchtune-sys generate script --from host.json | ssh host sudo bash -s
  bash tune.sh --check
  torchtune-sys generate script --stages install,tune,smoke -o provision.sh
  bash provision.sh --dry-run; sudo bash provision.sh --reboot

\b
The script needs bash 4.3 and coreutils, no Python. It writes the same files as
apply, keeps the previous state, and restores it with --undo. It stops
(unless started with --force) on a host whose memory, CPUs, GPUs or system
differ from the plan's.

\b
With --stages it provisions a bare host: it installs the driver and torch, makes
the plan's changes, runs the smoke test, and reboots where needed. It may be
killed and run again at any point. Its exit status is the smoke test's verdict.
It also stops on a host that differs from the plan's. See docs/provision.md.
""",
)
@plan_options
@description_options
@click.option("--stages", metavar="LIST", help="Stages, separated by commas: install, tune, smoke. [only the plan's changes]")
@install_options(VENV)
@click.option("--offline", metavar="DIR", help="Install from this directory on the host (packages, wheels), without network.")
def command(**options: Any) -> int:
    """Print a bash script that makes, checks and undoes the plan's changes; with --stages it also installs and tests."""
    from torchtune_sys.cli.planning import planned
    from torchtune_sys.cli.selection import status_of_looks
    from torchtune_sys.render.generate.script import made_for, script

    if options["stages"] is not None:
        return _provisioning(options)
    given = next((name for name in _OF_STAGES if options[name]), None)
    if given is not None or options["venv"] != VENV:
        raise click.UsageError(f"--{(_OF_STAGES[given] or given) if given else 'venv'} is for --stages.")
    found = planned(options)
    plan = part_of_plan(options, found)
    give(script(plan, made_for(found.seen)), options["output"], machine=True)
    more = tell_left_out(undecided(found, options))
    return status_of_looks(
        found.results, nothing="" if more or plan.changes else "the plan has no change, so the script does nothing"
    )


_OF_STAGES = {
    **dict.fromkeys(("torch", "cpu", "offline"), ""),
    "branch": "driver-branch",
    "extras": "with",
    **dict.fromkeys(shared.DESCRIPTION, ""),
}


def _provisioning(options: Mapping[str, Any]) -> int:
    made, text, unread = provisioned(options)
    give(text, options["output"], machine=True)
    return tell_refused(made.refused if "install" in made.stages else ()) or unread


def provisioned(options: Mapping[str, Any]) -> tuple[Provision, str, int]:
    """Return what takes the host from bare to proven, as a script, and 3 where the look failed at what it is made from, else 0.

    Raises UnreadableInput, click.UsageError.
    """
    from torchtune_sys.cli.planning import planned
    from torchtune_sys.cli.selection import status_of_looks
    from torchtune_sys.remediation.install import plan as install
    from torchtune_sys.remediation.plan.provision import provision
    from torchtune_sys.render.generate.provision import provisioning
    from torchtune_sys.render.generate.script import made_for
    from torchtune_sys.smoke.script import source

    stages = _stages(options["stages"])
    for name in ("venv", "offline"):
        if options[name] and not options[name].startswith("/"):
            raise click.BadParameter(
                f"{options[name]} is not an absolute path, and the script may run in any directory.", param_hint=f"--{name}"
            )
    asked, python = install_options_of(options)
    found = planned({**options, "python": python})
    must_start(found.seen, python)
    wanted = install.plan(found.seen, asked)
    tune = part_of_plan({**options, "python": python}, found)
    made = provision(found.seen, wanted, tune, asked, stages, options["offline"] or "")
    unread = status_of_looks(found.results) if "tune" in stages else 0
    return made, provisioning(made, source(), made_for(found.seen)), unread


def _stages(text: str) -> tuple[str, ...]:
    named = tuple(word.strip() for word in text.split(",") if word.strip())
    wrong = next((word for word in named if word not in STAGES), None)
    if wrong is not None or not named:
        raise click.BadParameter(f"{wrong or 'nothing'} is none of {', '.join(STAGES)}.", param_hint="--stages")
    return named
