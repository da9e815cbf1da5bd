"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "product-at-an-odd-address": ("right, in *layers* (the row named *gemm*)", "–"),
    "product-over-nothing": ("not noticed", "right"),
    "beta-zero-keeps-nan": ("not noticed", "right"),
    "one-matrix-for-all": ("wrong (`layer-wrong`)", "right"),
    "double-products-by-float": ("not noticed", "right"),
    "sums-of-whole-blocks": ("not noticed", "right"),
    "heads-of-128": ("not noticed", "right"),
    "thread-without-gradients": ("not noticed", "right"),
    "python-seeded-by-a-library": ("not noticed", "right"),
    "timer-left-on": ("not noticed", "right"),
    "tensors-without-memory": ("right, in *gemm* and *train*, too, which say no cause", "–"),
    "autocast-takes-float16": ("not noticed", "right"),
    "scaler-switched-off-scales": ("not noticed", "right"),
    "second-precision-not-stepped": ("not noticed", "right"),
    "frozen-weights-thaw": ("not noticed", "right, the row mended"),
    "extra-state-empty": ("not noticed", "right"),
    "time-limit-ignored": ("not noticed", "right"),
    "second-message-is-the-first": (
        "wrong (`stranger-among-ranks`): the row waited twice for a message",
        "right, the row mended",
    ),
    "odd-tail-not-summed": ("right", "–"),
    "gradients-reduced-in-bfloat16": ("right", "–"),
    "entropy-is-fixed": ("not noticed", "right since"),
    "entries-sorted": ("right", "–"),
    "flags-not-guarded": ("not noticed", "right since"),
    "other-shapes-are-spread": ("not noticed", "right since"),
    "pairs-are-twins": ("not noticed", "right since"),
    "reads-late-on-one-rank": ("not noticed", "right since"),
    "saves-stay-in-memory": ("not noticed", "right since"),
    "step-count-in-bfloat16": ("not noticed", "right since"),
    "whole-buffers-kept": ("right", "–"),
}
