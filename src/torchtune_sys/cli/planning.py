"""Make a plan from the options: snapshot, rules, plan context, plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from torchtune_sys.cli.pipeline import judged
from torchtune_sys.cli.selection import unjudged
from torchtune_sys.cli.take_snapshot import host_of
from torchtune_sys.model.plan import NOTHING_MADE, MadeBefore, Plan
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.remediation import plan as planner

if TYPE_CHECKING:
    from torchtune_sys.model.rule import Result
    from torchtune_sys.model.snapshot import Snapshot


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    context: PlanContext
    seen: Snapshot
    results: tuple[Result, ...]


def planned(options: Mapping[str, Any], made: MadeBefore = NOTHING_MADE) -> Planned:
    """Return the plan that the options ask for. Raises UnreadableInput, BadConfig, UnknownName."""
    from torchtune_sys.probes.plan_context import probe as context

    seen, results, _ = judged(options)
    host = host_of(options)
    paths, files = planner.places(results)
    found = (
        PlanContext()
        if host is None
        else context.probe(host, paths, files, planner.service_units(results), planner.settings(results))
    )
    plan = msgspec.structs.replace(planner.plan(seen, results, found, made), unjudged=unjudged(results))
    return Planned(plan=plan, context=found, seen=seen, results=results)
