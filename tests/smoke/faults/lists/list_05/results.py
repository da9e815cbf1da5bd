"""How each fault of the list was graded at first (before anything was built for it) and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS = {
    "headers-of-another": ("right", "–"),
    "no-openssl": ("vague", "right"),
    "amsgrad-forgets": ("vague: the row broke each Adam (a signature); the stage did not try amsgrad", "right, the row mended"),
    "transposed-conv-shifted": ("not noticed", "right"),
    "drop-last-ignored": ("wrong: the row named a cause that no stage has", "right, the row mended"),
    "no-sync-keeps-last": ("right (without the rank: the sum is wrong on all)", "–"),
    "sums-of-bfloat16-off": ("not noticed", "right"),
    "compiled-last-element": ("right", "–"),
    "compiled-without-gradient": ("right", "–"),
    "sharded-sum-for-mean": ("not noticed: the row broke nothing (torch 2.13 calls another function)", "right, the row mended"),
    "buffers-of-last-rank": ("right", "–"),
    "sampler-pads-with-first": ("wrong (`sampler-shards-overlap`)", "right"),
}
