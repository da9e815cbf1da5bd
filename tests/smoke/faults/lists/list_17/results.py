"""How each fault of the list was graded at first and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "attention-dropout-unscaled": ("not noticed", "right"),
    "complex-gradient-conjugated": ("right, as the gradient of fft.rfft", "right"),
    "kept-on-cpu-spoiled": ("not noticed", "right, in *layers* (the row named *recompute*)"),
    "added-group-rate": ("not noticed", "right"),
    "scaler-heeds-last-optimizer": ("not noticed", "right"),
    "smoothing-without-weights": ("not noticed", "right"),
    "fsdp1-gradients-summed": ("not noticed", "right"),
    "compiled-keeps-old-storage": ("not noticed", "right"),
    "flex-attention-without-score": ("not noticed", "right, in *compile* (the row named *layers*)"),
    "packed-out-of-order": ("not noticed", "right"),
    "selective-checkpoint-spoiled": (
        "not noticed: the row broke nothing, and nothing looked",
        "right, once the row broke something",
    ),
    "clip-leaves-out-bfloat16": ("not noticed", "right"),
    "batched-receives-swapped": ("not noticed", "right"),
    "rowwise-parts-apart": ("not noticed", "right"),
    "deepcopy-shares-weights": ("right", "–"),
    "float8-cut-off": ("not noticed", "right"),
}
