"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "scale-read-late": ("wrong", "wrong"),
    "padding-row-learns": ("right", "–"),
    "warm-restarts-of-one-length": ("not noticed", "right"),
    "view-offset-lost": ("right", "–"),
    "split-by-shares-loses": ("not noticed", "right"),
    "prefetch-repeats": ("not noticed", "right"),
    "rows-summed-in-bfloat16": ("not noticed", "right"),
    "clipped-in-a-step-hook": ("right", "–"),
    "compiled-keeps-first-precision": ("not noticed", "right"),
    "order-kept-by-persistent-workers": ("wrong: the row looped for ever on iterable data sets", "not noticed"),
    "allocations-slow-on-one": ("not noticed", "right"),
    "numbers-loaded-as-float32": ("right", "–"),
    "causal-from-the-end": ("right", "–"),
    "compiled-constant-not-in-key": ("not noticed", "not noticed"),
    "seeds-of-16-bits": ("not noticed", "not noticed"),
    "projected-lstm-scaled": ("right", "right"),
    "spectral-norm-frozen": ("not noticed", "not noticed"),
    "infinities-are-finite": ("right", "right"),
    "clip-of-nan-goes-on": ("not noticed", "not noticed"),
    "average-of-all-batches": ("right", "right"),
}
