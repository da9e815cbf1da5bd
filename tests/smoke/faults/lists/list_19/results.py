"""How each fault of the list was graded at first and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "worker-ends-quietly": ("not noticed: the row broke nothing (no worker had ten batches)", "right, the row mended"),
    "batch-served-again": ("right", "–"),
    "other-build": ("right", "–"),
    "disk-fills-midway": ("right", "–"),
    "shards-of-before": ("not noticed", "right"),
    "bound-in-between": ("right", "–"),
    "forked-beside-a-lock": ("right", "–"),
    "workers-do-not-leave": ("not noticed", "right"),
    "slower-now-and-then": ("not noticed", "right where no other process is in the way"),
    "bf16-sum-flips": ("right", "–"),
    "large-copies-halved": ("not noticed", "right"),
    "seeds-one-more": ("right", "–"),
}
