"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "sum-off-by-a-share": ("right", "–"),
    "largest-by-size": ("not noticed", "right"),
    "worker-shot-late": ("right", "–"),
    "second-moments-of-before": ("right", "–"),
    "gradients-kept-by-a-hook": ("not noticed", "right"),
    "cache-of-a-scratch-that-is-gone": ("right", "–"),
    "half-of-the-ports-blocked": ("right", "–"),
    "packets-lost-in-bursts": ("right", "–"),
    "seeds-by-rank": ("right", "–"),
    "clipped-before-the-sum": ("right", "–"),
    "epoch-one-behind": (
        "right in words, with the rank, as `sampler-not-reshuffled` (the row named `sampler-shards-overlap`)",
        "–",
    ),
    "labels-shifted": ("not noticed", "right"),
    "clock-limited-in-bursts": (
        "right in words, with the rank and its share, as `straggler-held-back` (the row named `straggler-compute`)",
        "–",
    ),
    "nan-now-and-then": ("right", "–"),
    "saved-with-a-flipped-bit": ("right", "–"),
    "unscaled-but-one": ("right in *amp-fp16*, as `scaler-changes-step` (the row named `scaler-unscale-wrong`)", "–"),
    "rate-of-one-rank": ("right, in *ddp* (`ddp-step-wrong`), too", "–"),
    "last-key-not-loaded": ("right", "–"),
}
