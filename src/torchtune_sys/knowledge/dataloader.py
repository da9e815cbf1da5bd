"""DataLoader settings to start from on a given host; to be measured and changed from there.

Sources: PyTorch tuning guide (num_workers > 0, pinned memory with an accelerator); ml-engineering, cpu chapter (two workers per GPU for
text, three or four for images); torch 2.15 utils/data/dataloader.py (prefetch_factor 2, warning above the affinity's CPUs).
"""

from __future__ import annotations

import math

import msgspec

MOST_WORKERS = 8
"""Per rank. More pays only for heavy decoding, and costs memory and start-up time in each epoch without persistent workers."""
PREFETCH_FACTOR = 2
"""Batches that each worker prepares ahead: torch's default."""


class StartingValues(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of ``torch.utils.data.DataLoader``."""

    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    """None where there are no workers: torch refuses a value then."""

    def __str__(self) -> str:
        words = [f"num_workers={self.num_workers}", f"pin_memory={self.pin_memory}"]
        if self.num_workers:
            words += [f"persistent_workers={self.persistent_workers}", f"prefetch_factor={self.prefetch_factor}"]
        return ", ".join(words)


def starting_values(effective_cpus: float, ranks: int, *, gpu: bool) -> StartingValues:
    """Return the values to start from: each rank keeps one CPU for itself, its workers share the rest, at most MOST_WORKERS.

    >>> str(starting_values(64, 8, gpu=True))
    'num_workers=7, pin_memory=True, persistent_workers=True, prefetch_factor=2'
    >>> str(starting_values(1, 1, gpu=False))
    'num_workers=0, pin_memory=False'
    """
    spare = math.floor((effective_cpus - ranks) / max(ranks, 1))
    workers = min(max(spare, 0), MOST_WORKERS)
    return StartingValues(
        num_workers=workers, pin_memory=gpu, persistent_workers=workers > 0, prefetch_factor=PREFETCH_FACTOR if workers else None
    )


def batch_room_bytes(shm_free_bytes: int, ranks: int, workers: int) -> int:
    """Return the size of one batch at which the batches under way fill /dev/shm: each worker holds PREFETCH_FACTOR of them there, and the
    rank one more.

    >>> batch_room_bytes(64 << 20, 1, 2) >> 20
    12
    """
    return shm_free_bytes // max(ranks * (workers * PREFETCH_FACTOR + 1), 1)
