"""How each fault of the list was graded at first and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "async-save-by-reference": ("not noticed", "right"),
    "compiled-dropout-repeats": ("not noticed", "right"),
    "no-sync-bucket-view": ("not noticed", "right"),
    "reentrant-loses-randomness": ("not noticed", "right"),
    "autocast-conv-gradient": ("not noticed", "right"),
    "autocast-attention-mask": ("not noticed", "right"),
    "post-accumulate-hook-lost": ("not noticed", "right"),
    "adamw-bfloat16-decay": ("not noticed", "right"),
    "host-files-exhausted": ("right, with a remedy for another limit (ulimit -n)", "right, with `fs.file-max`"),
    "scratch-cleaned": ("wrong (`spawn-broken`; a missing file in *checkpoint*)", "right: `temporary-files-removed`"),
    "compiled-input-not-written": ("not noticed", "right"),
    "cosine-resumes-late": ("not noticed", "right"),
    "ema-count-lost": ("not noticed", "right"),
    "full-state-dict-part": ("not noticed", "right"),
    "channels-last-groups-gradient": ("right", "–"),
    "quota-on-one": ("right, with the rank and the quota", "–"),
}
