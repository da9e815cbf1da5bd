"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "zero-grad-first-group": ("not noticed", "right"),
    "backward-inputs-ignored": ("right", "–"),
    "no-grad-after-an-error": ("not noticed", "right"),
    "counts-backwards": ("not noticed", "right"),
    "clip-returns-the-bound": ("right, in *layers*, too", "–"),
    "clip-by-another-norm": ("right, in *layers*, too", "–"),
    "growth-counted-anew": ("right", "–"),
    "loader-timeout-ignored": ("not noticed", "right"),
    "concat-one-further": ("right", "–"),
    "dict-batches-mixed": ("not noticed", "right"),
    "strides-lost": ("right", "–"),
    "deep-keys-ignored": ("not noticed", "right"),
    "sum-of-nothing-hangs": ("not noticed", "right"),
    "barrier-of-a-group": ("not noticed", "right"),
    "evaluation-ends-synchronising": ("not noticed", "right"),
    "doubles-not-synchronised": ("right", "–"),
    "sampler-pads-nevertheless": ("right", "–"),
    "ftruncate-refused": ("vague", "right"),
    "stack-of-200-kilobytes": ("not noticed: it broke nothing", "–"),
    "optimizer-slow-on-one-rank": (
        "not noticed",
        "right on a host that is not crowded (by a load that the row feigned)",
    ),
    "nesterov-ignored": ("right", "–"),
    "maximize-ignored": ("not noticed", "right since"),
    "freezing-stops-at-children": ("not noticed", "named as `layer-wrong` since"),
    "tied-weights-twice": ("not noticed", "named as `layer-wrong` since"),
    "apply-stops-at-children": ("not noticed", "named as `layer-wrong` since"),
    "masks-over-the-batch": ("not noticed", "right since"),
    "attention-scale-ignored": ("right", "–"),
    "subset-in-order": ("not noticed", "right since"),
    "shared-memory-private": ("not noticed", "right since"),
    "children-keep-buffers": ("not noticed", "right since"),
}
