"""Select the planned changes that ``apply`` makes, and tell why others are skipped and which rules could not say whether they ask for one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from torchtune_sys.cli.main import UNJUDGED
from torchtune_sys.cli.names import rule_names
from torchtune_sys.cli.planning import Planned, unjudged, why_unjudged
from torchtune_sys.cli.terminal import tell
from torchtune_sys.model import actions
from torchtune_sys.model.actions import Action, Safety
from torchtune_sys.model.plan import Unjudged
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation import plan as planner

if TYPE_CHECKING:
    from torchtune_sys.model.plan import Change, Plan


def selected_changes(found: Planned, options: Mapping[str, Any]) -> tuple[Plan, dict[str, str]]:
    """Return the changes that are asked for, and what was left out of the plan (key → why). Raises UnknownName."""
    only = rule_names(options["only"])
    busy = gpus_in_use(found) and not options["force"]
    left_out: dict[str, str] = {}

    def keep(change: Change) -> bool:
        if only and not set(change.rules) & only:
            return False
        if change.safety is not Safety.SAFE and options["safe_only"]:
            left_out[change.key] = "unsafe: give --unsafe to make it"
        elif change.disrupts and busy:
            left_out[change.key] = "would disturb the processes on the GPUs: give --force, or wait for them to end"
        return change.key not in left_out

    plan = planner.part(found.plan, found.context, keep)
    return (_of_rules(plan, only) if only else plan), left_out


def _of_rules(plan: Plan, only: frozenset[str]) -> Plan:
    """Return the plan without what other rules want of a person."""
    return structs.replace(
        plan,
        waiting=tuple(change for change in plan.waiting if set(change.rules) & only),
        refused=tuple(refusal for refusal in plan.refused if set(refusal.rules) & only),
        by_hand=tuple(item for item in plan.by_hand if item.rule in only),
        install=(),
        install_refused=(),
    )


def not_made(found: Planned, plan: Plan, options: Mapping[str, Any]) -> bool:
    """Return whether something that is asked for is not in the plan; what is not said above is said.

    Asked for is what the rules that were named want; else all that could be made, but not what needs a decision that nobody took.
    """
    named = rule_names(options["only"])
    words = list(_why_not(found, named)) if named else ["what is refused above"] if found.plan.refused else []
    for line in words:
        tell(f"not made: {line}")
    made = {change.key for change in plan.changes}
    undecided = frozenset() if named or not options["safe_only"] else frozenset(Safety) - {Safety.SAFE}
    left_out = [change for change in found.plan.changes if change.key not in made and change.safety not in undecided]
    return bool(words) or any(not named or set(change.rules) & named for change in left_out)


def _why_not(found: Planned, named: frozenset[str]) -> Iterator[str]:
    plan = found.plan
    for refusal in plan.refused:
        if set(refusal.rules) & named:
            yield f"{refusal.key}: {refusal.reason} ({refusal.way})"
    planned_rules = {rule for change in (*plan.changes, *plan.waiting) for rule in change.rules}
    planned_rules |= {rule for refusal in plan.refused for rule in refusal.rules}
    for item in plan.by_hand:
        if item.rule in named - planned_rules:
            yield f"{item.rule}: only a person can do it (torchtune-sys explain {item.rule})"
    for result in found.results:
        if result.rule.id in named and result.verdict in (Verdict.UNKNOWN, Verdict.CRASHED):
            yield f"{result.rule.id}: could not be checked: {why_unjudged(result)}"


def gpus_in_use(found: Planned) -> bool:
    """Return whether processes run on the GPUs, or it could not be seen whether they do."""
    gpu = found.seen.gpu
    if isinstance(gpu, Missing) or isinstance(gpu.devices, Missing):
        return False
    seen = [device.processes for device in gpu.devices]
    unseen = (Why.ABSENT, Why.NOT_RECORDED, Why.NOT_SUPPORTED)
    return any(held.why not in unseen if isinstance(held, Missing) else bool(held) for held in seen)


_NAMED = 3
"""Rules that are named beside one reason; a paste lacks what most of them need."""


def _lines(found: Iterable[Unjudged]) -> Iterator[str]:
    """Yield a line for each reason, whichever file it is said of.

    >>> said = {"a": "x: denied", "b": "r: not in the report", "c": "r: not in the report", "d": "y: not in the report", "e": "y: not in the report"}
    >>> list(_lines(Unjudged(rule=rule, reason=reason, late=False) for rule, reason in said.items()))
    ['a: x: denied', 'b, c, d and 1 more: not in the report']
    """
    by_reason: dict[str, list[Unjudged]] = {}
    for one in found:
        by_reason.setdefault(one.reason.rpartition(": ")[2], []).append(one)
    for reason, alike in by_reason.items():
        if len(alike) <= _NAMED:
            yield from (f"{one.rule}: {one.reason}" for one in alike)
        else:
            yield f"{', '.join(one.rule for one in alike[:_NAMED])} and {len(alike) - _NAMED} more: {reason}"


def tell_unjudged(found: Collection[Unjudged]) -> int:
    """Tell which rules could not be checked, and why; return 3 where there are any: "nothing to change" would be no answer then. Else 0."""
    for line in _lines(found):
        tell(f"could not be checked: {line}")
    return UNJUDGED if found else 0


def status_of_looks(results: Iterable[Result], asks: Callable[[Action], bool] = actions.changes, *, nothing: str = "") -> int:
    """Return 3, and tell of what, where the look at what is printed failed and another may not. Else 0.

    ``nothing``: what to say where nothing is printed, and nothing is asked for; in its place all are told that could not be checked."""
    found = unjudged(results, asks)
    late = [one for one in found if one.late]
    if not nothing:
        return tell_unjudged(late)
    if not tell_unjudged(found):
        tell(nothing)
    return UNJUDGED if late else 0
