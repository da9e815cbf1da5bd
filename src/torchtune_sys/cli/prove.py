"""``apply --prove``: run the smoke test before and after, and offer undo if something got worse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli.smoke_run import run_smoke
from torchtune_sys.cli.terminal import can_ask, tell
from torchtune_sys.render.smoke import headline
from torchtune_sys.smoke.regressions import Regression, broken, slowed

if TYPE_CHECKING:
    from torchtune_sys.model.smoke import SmokeReport


def smoke_report(options: Mapping[str, Any], when: str) -> SmokeReport:
    """Run the smoke test at level quick; the verdict goes to stderr."""
    report, _seen, _epoch_s = run_smoke({"python": options["python"], "ranks": options["ranks"], "level": "quick"})
    tell(f"{when}: {headline(report)}")
    return report


def regressions(options: Mapping[str, Any], before: list[SmokeReport]) -> list[Regression]:
    """Return what is worse after the change. Where a figure looks worse both sides are run once more: ``before`` holds two runs at least."""
    after = [smoke_report(options, "after the changes")]
    found = broken(before[0], after[0])
    if not found and slowed(before, after):
        after.append(smoke_report(options, "once more, to tell a regression from noise"))
        found = broken(before[0], after[1])
    return found + slowed(before, after)


def offer_undo(found: list[Regression], run: int) -> bool:
    """Say what got worse, and whether a person at the terminal wants it taken back."""
    for regression in found:
        tell(f"{'broken' if regression.broke else 'slower'}  {regression.stage}: {regression.words}")
    tell(f"The changes of run {run} made training worse on this host. torchtune-sys undo {run} undoes them.")
    return can_ask() and click.confirm("Undo them now?", err=True)
