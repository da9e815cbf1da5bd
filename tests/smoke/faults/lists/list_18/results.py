"""How each fault of the list was graded at first and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "celu-alpha-backward": ("right", "–"),
    "tanh-saturates-early": ("not noticed", "right"),
    "lp-pool-floor": ("right", "–"),
    "group-norm-channels-last": ("not noticed", "right"),
    "max-pool3d-undilated": ("right", "–"),
    "pad-circular-swapped": ("not noticed", "right"),
    "instance-norm-eval": ("not noticed", "right"),
    "layer-norm-narrow-sums": ("not noticed", "right"),
    "adamw-rate-kept": ("not noticed", "right"),
    "fsdp1-full-state-short": ("not noticed", "right"),
    "planner-numbers-stale": ("not noticed", "right"),
    "pipeline-chunks-turned": ("not noticed", "right"),
    "fractional-pool-same-places": ("right", "–"),
    "reflection-pad3d-once": ("right", "–"),
    "optimizer-groups-crossed": ("not noticed", "right"),
    "polynomial-ends-at-zero": ("right", "–"),
    "rprop-grows-without-limit": ("the row broke the import itself", "right, the row mended; not noticed before"),
    "adam-complex-real-only": ("the row broke the import itself", "right, the row mended"),
    "differentiable-sum-one-way": ("not noticed", "right"),
    "group-not-destroyed": ("right", "–"),
}
