"""Pre-flight: a node judges itself before a job starts there. Its own faults never keep a node from work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtune_sys.model.preflight import Preflight


def check_group(group: Any = None, budget_s: float = 60.0, policy: str | None = None) -> Preflight:
    """Check the ranks of a torch.distributed process group from inside, with the group that is there (docs/in-training.md).

    Every rank of ``group`` (None: of the default group) calls it at the same place, after ``init_process_group``; each gets the same verdict
    (``verdict`` is "go", "no-go" or "unknown"; ``nodes``, ``links`` and ``absent`` say why) within ``budget_s`` and a few seconds. It raises
    nothing but for a wrong argument. ``policy`` names a policy file. After a verdict that says that a collective hangs, the group is of no
    more use: end the process.
    """
    from torchtune_sys.preflight.in_group.checking import check

    return check(group, budget_s, policy)
