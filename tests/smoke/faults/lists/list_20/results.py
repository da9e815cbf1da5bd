"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "all-reduce-of-transposed": ("not noticed", "right"),
    "async-sums-swapped": ("not noticed: the row broke nothing", "right, the row mended"),
    "object-lists-repeat": ("not noticed", "right"),
    "sender-misnamed": ("not noticed", "right"),
    "subgroups-of-others": ("not noticed", "right"),
    "fsdp-accumulation-lost": ("not noticed", "right"),
    "averaged-buffers": ("not noticed", "right"),
    "precision-unties": ("not noticed", "right"),
    "clip-takes-infinity": ("not noticed", "right"),
    "ddp-beside-frozen": ("not noticed", "right"),
    "stream-second-epoch": ("not noticed", "right"),
    "fused-without-decay": ("right", "right"),
    "generator-not-restored-again": ("not noticed", "right"),
    "recompute-forgets-autocast": ("vague (*recompute* fails without a cause)", "right"),
    "interleaved-not-scaled": ("not noticed", "right"),
    "jagged-padding": ("not noticed", "right, in *compile* (the row named *layers*)"),
    "epoch-left-early": ("not noticed", "right"),
    "compiled-eval-ignored": ("not noticed", "right"),
    "compiled-step-old-rate": ("not noticed", "not tried again"),
}
