"""Place the local ranks on CPUs and GPUs, from the options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtune_sys.cli.options import NO_INTENT
from torchtune_sys.cli.take_snapshot import host_of, look
from torchtune_sys.errors import UserError
from torchtune_sys.model.placement import Placement, PlacementFacts, RankPlacement
from torchtune_sys.model.values import Missing, Unknown, Why
from torchtune_sys.remediation.placement.assign import place_bound_rank, place_rank, place_ranks
from torchtune_sys.remediation.placement.notes import memory_refused

if TYPE_CHECKING:
    from torchtune_sys.model.snapshot import Snapshot

FAMILIES = ("session", "cpu", "numa", "pci")
"""The families that placement needs; none of them starts a child process."""


def placement_of_host(options: Mapping[str, Any], *, one_thread_per_core: bool) -> tuple[Snapshot, PlacementFacts, Placement]:
    """Read the whole host and place its ranks. Raises UnreadableInput, UserError where what must be known could not be read."""
    seen, facts = look(options), _placement_facts(options)
    try:
        return seen, facts, place_ranks(seen, facts, seen.intent.ranks, one_thread_per_core=one_thread_per_core)
    except Unknown as reason:
        raise _unplaced(reason) from None


def placement_of_this_rank(rank: int, ranks: int | None, *, bound: bool, one_thread_per_core: bool) -> tuple[RankPlacement, str]:
    """Place this process, reading as little as needed. Also return what prevents binding its memory (``""`` if nothing).

    ``bound``: whether it is bound to CPUs of its own already. Raises UserError."""
    options = {**NO_INTENT, "ranks": ranks, "from_": None, "root": None, "timeout": None}
    seen, facts = look(options, only=FAMILIES), _placement_facts(options)
    ranks = ranks or seen.intent.ranks
    try:
        if bound:
            seat = place_bound_rank(seen, facts, rank, ranks, one_thread_per_core=one_thread_per_core)
            return seat, memory_refused(seen, facts)
        seat_or_count = place_rank(seen, facts, rank, ranks, one_thread_per_core=one_thread_per_core)
    except Unknown as reason:
        raise _unplaced(reason) from None
    if isinstance(seat_or_count, int):
        raise UserError(
            f"there is room for {seat_or_count} {'rank' if seat_or_count == 1 else 'ranks'} only", "give --nproc-per-node"
        )
    return seat_or_count, memory_refused(seen, facts)


def _placement_facts(options: Mapping[str, Any]) -> PlacementFacts:
    from torchtune_sys.probes.plan_context import placement as facts

    host = host_of(options)
    unread = Missing(Why.NOT_RECORDED, "a report", "does not describe cores")
    return PlacementFacts(cores=unread, may_bind_memory=unread) if host is None else facts.probe(host)


def _unplaced(reason: Any) -> UserError:
    return UserError(f"ranks cannot be placed: {reason.missing}", reason.missing.remedy)
