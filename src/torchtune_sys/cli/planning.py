"""Make a plan from the options: snapshot, rules, plan context, plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from torchtune_sys.cli.pipeline import judged
from torchtune_sys.cli.take_snapshot import host_of
from torchtune_sys.model import actions
from torchtune_sys.model.actions import Action
from torchtune_sys.model.plan import NOTHING_MADE, MadeBefore, Plan, Unjudged
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.values import Why
from torchtune_sys.remediation import plan as planner
from torchtune_sys.render.report import reasons

if TYPE_CHECKING:
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


_PASSES = (Why.TIMEOUT, Why.CRASHED)


def unjudged(results: Iterable[Result], asks: Callable[[Action], bool] = actions.changes) -> tuple[Unjudged, ...]:
    """Return the rules that could have asked for an action of a kind (a change) and could not judge."""
    unknown = (result for result in results if result.verdict in (Verdict.UNKNOWN, Verdict.CRASHED))
    return tuple(
        Unjudged(rule=result.rule.id, reason=why_unjudged(result), late=_is_late(result))
        for result in unknown
        if any(map(asks, result.rule.fix))
    )


def _is_late(result: Result) -> bool:
    """Return whether another run may judge: not after a lack of privilege or of a record, nor of what cannot be read on this host in any run: a host in a fleet would fail each time."""
    return result.verdict is Verdict.CRASHED or any(missing.why in _PASSES for missing in reasons(result))


def why_unjudged(result: Result) -> str:
    """Return why a rule could not be checked, or crashed."""
    if result.why_unknown is not None:
        return str(result.why_unknown)
    return next((item.seen for item in result.evidence if item.verdict is Verdict.UNKNOWN), result.note)
