"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "clip-of-nothing": ("not noticed", "right"),
    "masks-of-turned-heads": ("right", "–"),
    "upstream-of-one-number": ("not noticed", "right"),
    "lstm-forgets-its-state": ("not noticed", "right"),
    "zero-grad-stops-at-children": ("not noticed", "right"),
    "mapped-weights-written": ("not noticed", "right"),
    "second-derivative-of-softplus": ("not noticed", "right"),
    "marked-places-of-a-view": ("not noticed", "right"),
    "fsdp1-clips-its-part": ("not noticed", "right"),
    "files-beyond-4-gib": ("not noticed", "right"),
    "bfloat16-slow-on-one-rank": ("another rank was named, beside a crowd", "not noticed: crowded hosts are not judged"),
    "schedule-begins-anew": ("not noticed", "right"),
    "weights-of-one-number": ("not noticed", "right"),
    "embedding-of-no-words": ("not noticed", "right"),
    "pieces-of-a-group-reversed": ("right", "–"),
    "later-sums-left-out": ("right", "–"),
    "ddp-group-divides-by-all": ("right", "–"),
    "last-of-a-stream": ("right", "–"),
    "arrays-as-in-memory": ("right", "–"),
    "betas-of-the-first": ("right", "–"),
    "second-model-not-synchronised": ("right", "–"),
}
