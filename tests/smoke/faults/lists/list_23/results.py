"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "wrong-once-it-is-warm": (
        "wrong (`scaler-changes-step`, `resume-differs`)",
        "right, in the other stages where it shows, too",
    ),
    "exp-wrong-in-a-range": ("not noticed", "right"),
    "rsqrt-wrong-at-the-tail": ("right", "–"),
    "long-rows-not-sorted": ("wrong (`random-numbers-wrong`: *device* judged by a sort)", "right"),
    "odd-bytes-copied-short": ("vague: the row broke itself", "right, the row mended"),
    "collisions-lost": ("not noticed", "right"),
    "bfloat16-turned-product": ("not noticed", "right"),
    "softmax-changes-what-it-takes": ("right", "–"),
    "clamp-swallows-nan": ("right", "–"),
    "stalls-now-and-then": (
        "right in words, as `straggler-held-back` (the row named `steps-held-up`)",
        "the row mended, not run again",
    ),
    "slower-the-longer-it-runs": ("right", "–"),
    "workers-slower-than-their-rank": ("not noticed", "right"),
    "mapped-pages-are-empty": ("not noticed", "right"),
    "large-draws-repeat": ("not noticed", "right"),
    "activations-narrowed": ("right, in *layers* and *train*, too, which the row ran", "the row mended, not run again"),
    "mkl-of-old-processors": ("not noticed", "right"),
    "infs-in-later-gradients": ("not noticed", "right"),
    "some-factors-wrong": ("right, after a wrong cause in *device* (`torch-setting-changed`)", "mended, not run again"),
    "rows-beyond-65535": ("right", "–"),
    "carry-lost-in-running-sums": ("right", "–"),
    "whole-products-cut": ("right", "–"),
    "batches-overwritten": ("not noticed", "right since"),
    "folder-seen-late": ("not noticed", "right since"),
    "wait-does-not-wait": ("right", "–"),
    "sums-beyond-their-end": ("not noticed", "right since"),
}
