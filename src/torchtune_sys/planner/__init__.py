"""Results → Plan: what would be changed on this host, in order, and what not, with the reasons.

Pure: the same results and the same ground give the same plan. In two steps, since only the results say what there is to look at:
:func:`places` names what must be looked at, :func:`plan` decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.model.actions import Needs, Safety
from torchtune_sys.model.ground import OWNED, Ground
from torchtune_sys.model.plan import Change, Plan, Refusal
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.planner import files, owners, steps, wishes

__all__ = ["places", "plan"]


def places(results: Iterable[Result]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The running values (patterns included) and the files that a plan of these results may touch."""
    asked = [wish.action for wish in wishes.asked(results)]
    return tuple(steps.value_paths(asked)), (*OWNED, *steps.own_files(asked))


def plan(s: Snapshot, results: Iterable[Result], ground: Ground) -> Plan:
    results = tuple(results)
    changes: list[Change] = []
    refused: list[Refusal] = []
    for group in wishes.grouped(wishes.asked(results)):
        made = _one(s, ground, group)
        if isinstance(made, Refusal):
            refused.append(made)
        elif made is not None:
            changes.append(made)
    ordered = tuple(sorted(changes, key=_order))
    hostname = known(s.system.hostname, "") if not isinstance(s.system, Missing) else ""
    return Plan(
        host=hostname,
        origin=s.origin,
        changes=ordered,
        files=files.owned(ordered, ground),
        refused=tuple(refused),
        by_hand=tuple(wishes.by_hand(results)),
    )


def _one(s: Snapshot, ground: Ground, group: wishes.Group) -> Change | Refusal | None:
    if isinstance(group.merged, str):
        return Refusal(key=group.key, rules=group.rules, reason=group.merged, way="choose one: --ignore the other rule")
    unread = files.unread(group.merged, ground)
    if unread is not None:
        return Refusal(key=group.key, rules=group.rules, reason=str(unread), way="what stands there now must be read first")
    refusal = owners.refusal(s, ground, group.key, group.rules, group.merged)
    return refusal if refusal is not None else steps.change(s, ground, group)


def _order(change: Change) -> tuple[bool, int, str]:
    """What is safe and takes effect at once comes first, what needs a restart or a reboot last."""
    return (change.safety is not Safety.SAFE, tuple(Needs).index(change.needs), change.key)
