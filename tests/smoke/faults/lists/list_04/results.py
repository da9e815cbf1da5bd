"""How each fault of the list was graded at first (before anything was built for it) and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS = {
    "backend-extension-broken": ("vague", "right"),
    "numpy-broken": ("vague", "right"),
    "cache-noexec": ("not noticed: the row broke nothing (its variable did not reach ranks of root)", "right, the row mended"),
    "compiled-for-one-size": (
        "not noticed",
        "right; once wrong, at a load of 33 (`rank-hung`: compiling took more than its 300 s)",
    ),
    "cpu-time-limit": ("right", "right"),
    "disk-without-mmap": ("not noticed", "right"),
    "autocast-cache-stale": ("wrong (`amp-diverges`)", "right"),
    "growth-count-kept": ("right", "–"),
    "static-graph-not-synchronised": ("right", "–"),
    "sharded-norm-of-own-part": ("right", "–"),
    "each-worker-alone": ("right", "–"),
    "channels-last-norm": ("right", "–"),
    "shm-of-another": ("right", "–"),
}
