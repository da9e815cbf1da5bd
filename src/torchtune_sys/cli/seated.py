"""From the options to seats: look, and place the local ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtune_sys.errors import UserError

if TYPE_CHECKING:
    from torchtune_sys.model.placement import Seating
    from torchtune_sys.model.snapshot import Snapshot


def seated(options: Mapping[str, Any], *, one_thread_per_core: bool = False) -> tuple[Snapshot, Seating]:
    """Raises UnreadableInput, UserError where what must be known could not be read."""
    from torchtune_sys.cli.look import host_of, look
    from torchtune_sys.model.placement import Room
    from torchtune_sys.model.values import Missing, Unknown, Why
    from torchtune_sys.planner.placement import seating
    from torchtune_sys.planner.visible import visible
    from torchtune_sys.probes import room

    seen = look(options)
    host = host_of(options)
    unread = Missing(Why.NOT_RECORDED, "a report", "says nothing of cores")
    place = Room(cores=unread, may_bind_memory=unread) if host is None else room.probe(host)
    ranks = seen.intent.ranks or len(visible(seen).addresses) or 1
    try:
        return seen, seating(seen, place, ranks, one_thread_per_core=one_thread_per_core)
    except Unknown as reason:
        raise UserError(f"ranks cannot be placed: {reason.missing}", reason.missing.remedy) from None
