"""Ranks that meet, and what they exchange."""

from __future__ import annotations

import datetime
import gc

import torch.distributed as dist

from torchtune_sys.smoke.worker.here import Here

MEETING_S = 60.0
EXCHANGE_S = 30.0
"""How long one exchange may take; the driver finds a rank that hangs before."""


def ranks_meet(here: Here) -> None:
    """The ranks find each other and form a process group."""
    dist.init_process_group(
        here.backend,
        timeout=datetime.timedelta(seconds=MEETING_S),
        **({"device_id": here.device} if here.backend == "nccl" else {}),
    )
    here.measure("ranks", dist.get_world_size(), "")


def part(here: Here) -> None:
    """Leave in order: what gloo still holds at the interpreter's end aborts it (torch 2.13)."""
    gc.collect()
    if dist.is_available() and dist.is_initialized() and not here.broken:
        dist.barrier()
        dist.destroy_process_group()
