"""``torchtune-sys plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style, tell

if TYPE_CHECKING:
    from torchtune_sys.cli.planning import Planned

FORMATS = ("text", "json", "markdown", "diff")


@shared.command(
    "plan",
    common=("--python", "--from", "--select", "--profile", "--format"),
    epilog="""\b
Examples:
  torchtune-sys plan --nproc-per-node 8
  torchtune-sys plan --select sysctl,storage --format diff
  torchtune-sys plan --from host.json --format json

\b
Safe changes disturb no running job and can be undone exactly. Unsafe changes
need a decision. What only a person can do is listed last. A change is refused
where something else owns the setting: tuned, a container's host, an image.

Exit status: 0 nothing to change; 1 there are changes; 2 usage error; 3 facts
that decide the changes could not be read; 4 internal error.
""",
)
@shared.intent_options
@shared.host_options
@shared.selection_options
@shared.profile_options
@shared.format_option(*FORMATS)
@shared.output_option
@click.option("-v", "--verbose", is_flag=True, help="Show every step, and everything that is left to a person.")
@shared.color_option
def command(**options: Any) -> int:
    """Show the changes that would fix what check finds, and why; change nothing."""
    from torchtune_sys.cli.planning import planned
    from torchtune_sys.cli.selection import tell_unjudged

    found = planned(options)
    made = found.plan
    give(_rendered(made, options, is_whole=not made.unjudged), options["output"], machine=options["format_"] != "text")
    if without := _without_torch(found):
        tell(without)
    if made.changes:
        return 1
    if options["format_"] == "diff":
        tell("the plan changes no file and no value")
    return tell_unjudged(made.unjudged)


def _without_torch(found: Planned) -> str:
    """Return what to do where torch is not there: installing it is no change of the host's, and no rule fails for it."""
    from torchtune_sys.rules.can_train import Device, ability

    trains = ability(found.seen, found.results)
    if trains.device is not Device.NONE or trains.by_finding or any(item.step.key == "torch" for item in found.plan.install):
        return ""
    asked = "" if found.seen.origin == "live" else ", given the same host,"
    return f"cannot train: {trains.why}: torchtune-sys generate install{asked} prints how to install it; --python names another interpreter"


def _rendered(made: Any, options: dict[str, Any], *, is_whole: bool) -> str:
    from torchtune_sys.render import plan as shown

    if options["format_"] == "text":
        from torchtune_sys.cli.options import given_again

        given = given_again(click.get_current_context(), ("from_", "root", "format_", "output", "verbose", "color"))
        how = style(options["color"], options["output"], is_here=made.origin == "live")
        return shown.text(made, how, verbose=options["verbose"], given=given, is_whole=is_whole)
    if options["format_"] == "json":
        from torchtune_sys.render import as_json

        return as_json.plan(made)
    return shown.markdown(made, is_whole=is_whole) if options["format_"] == "markdown" else shown.diff(made)
