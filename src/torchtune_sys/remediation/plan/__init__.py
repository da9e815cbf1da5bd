"""Make a Plan from results: the changes on this host, in order, and the refused ones with reasons.

Pure: the same results and the same context give the same plan. In two steps, since only the results say what there is to look at:
:func:`places` names what must be looked at, :func:`plan` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from torchtune_sys.model.actions import KernelArgument, Needs, Safety, Service, Sysctl
from torchtune_sys.model.plan import NOTHING_MADE, Change, FileLine, MadeBefore, Plan, Refusal, Step, Value
from torchtune_sys.model.plan_context import OWNED, PlanContext
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.remediation.install.findings import steps_for
from torchtune_sys.remediation.plan import change_requests, files, kernel_arguments, ownership, steps
from torchtune_sys.rules.sysctl.policy import proc

__all__ = ["part", "places", "plan", "settings", "still_asked", "service_units"]


def places(results: Iterable[Result]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the running values (patterns included) and the files that a plan of these results may touch, or must know to be there."""
    asked = [request.action for request in change_requests.asked(results)]
    units = (path for action in asked for path in steps.unit_files(action))
    return tuple(steps.value_paths(asked)), (*OWNED, *steps.own_files(asked), *units)


def settings(results: Iterable[Result]) -> tuple[str, ...]:
    """Return the files below /proc/sys that a plan of these results may write."""
    return tuple(
        dict.fromkeys(
            proc(request.action.key) for request in change_requests.asked(results) if isinstance(request.action, Sysctl)
        )
    )


def service_units(results: Iterable[Result]) -> tuple[str, ...]:
    """Return the systemd units that a plan of these results may set."""
    return tuple(request.action.unit for request in change_requests.asked(results) if isinstance(request.action, Service))


def plan(s: Snapshot, results: Iterable[Result], context: PlanContext, made: MadeBefore = NOTHING_MADE) -> Plan:
    """Make the plan; ``made``: what earlier runs made of it."""
    results = tuple(results)
    found = [_one(s, context, group) for group in change_requests.grouped(change_requests.asked(results))]
    changes = sorted((item for item in found if isinstance(item, Change)), key=_order)
    there = [change for change in changes if _is_made(change, context, made.since_start)]
    idle = [c for c in there if c.needs is Needs.REBOOT and c.key in made.earlier - made.since_start]
    ordered = tuple(change for change in changes if change not in there)
    to_install = steps_for(s, results)
    return Plan(
        host=known(s.system.hostname, "") if not isinstance(s.system, Missing) else "",
        origin=s.origin,
        changes=ordered,
        waiting=tuple(change for change in there if change not in idle),
        files=files.owned(ordered, context),
        refused=(*(item for item in found if isinstance(item, Refusal)), *map(_without_effect, idle)),
        by_hand=tuple(change_requests.by_hand(results)),
        install=to_install.steps,
        install_refused=to_install.refused,
        install_torch=to_install.torch,
    )


def part(whole: Plan, context: PlanContext, keep: Callable[[Change], bool]) -> Plan:
    """Return the plan with some of its changes only, and the files as they are then."""
    kept = tuple(change for change in whole.changes if keep(change))
    return msgspec.structs.replace(whole, changes=kept, files=files.owned(kept, context))


def still_asked(results: Iterable[Result]) -> frozenset[str]:
    """Return the keys of what the rules still want changed: what is not among them any more is cured."""
    return frozenset(change_requests.key(request.action) for request in change_requests.asked(results))


def _is_made(change: Change, context: PlanContext, made_already: frozenset[str]) -> bool:
    """Whether nothing is left but to wait: every step stands in a file of ours or at the next boot, or was done by an earlier run."""
    if change.needs is Needs.NOTHING:
        return False
    made = change.key in made_already
    if isinstance(change.action, KernelArgument):
        made = made or kernel_arguments.stands(change.action.argument, context)
    return all(files.stands(step, context) if isinstance(step, FileLine) else made for step in change.steps)


def _without_effect(change: Change) -> Refusal:
    """Return the refusal of what the host was started with, and the rules find the same."""
    place = (
        "/proc/cmdline" if isinstance(change.action, KernelArgument) else "the initramfs, which may hold the options of before"
    )
    return Refusal(
        key=change.key,
        rules=change.rules,
        reason="an earlier run made it, and the host was started since without effect",
        way="; ".join((f"look at {place}", *change.later)),
    )


def _one(s: Snapshot, context: PlanContext, group: change_requests.RequestGroup) -> Change | Refusal | None:
    if isinstance(group.merged, str):
        return Refusal(key=group.key, rules=group.rules, reason=group.merged, way="choose one: --ignore the other rule")
    made = ownership.refusal(s, context, group.key, group.rules, group.merged) or steps.change(s, context, group)
    unread = files.unread(made.steps, context) if isinstance(made, Change) else None
    if unread is not None:
        return Refusal(key=group.key, rules=group.rules, reason=str(unread), way="what is there now must be read first")
    closed = next(filter(None, (_closed(step, context) for step in made.steps)), "") if isinstance(made, Change) else ""
    if closed:
        way = "make it writable, and plan again"
        return Refusal(key=group.key, rules=group.rules, reason=closed, way=way, unwritable=True)
    return made


def _closed(step: Step, context: PlanContext) -> str:
    """Why it cannot be written; empty where nothing is known that would keep it from that."""
    return context.unwritable.get(step.path, "") if isinstance(step, Value | FileLine) else ""


def _order(change: Change) -> tuple[bool, int, str]:
    """Return the key to sort by: what is safe and takes effect at once comes first, what needs a restart or a reboot last."""
    return (change.safety is not Safety.SAFE, tuple(Needs).index(change.needs), change.key)
