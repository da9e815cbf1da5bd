"""How each fault of the list was graded at first (before anything was built for it) and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "vocabulary-cut": ("not noticed", "right"),
    "interpolate-corners": ("not noticed", "right"),
    "gather-gradient-once": ("not noticed", "right"),
    "attention-long-wrong": ("not noticed", "right"),
    "ema-copies": ("not noticed", "right"),
    "loader-seeds-repeat": ("not noticed", "right"),
    "spawn-broken": ("not noticed", "right"),
    "monitored-barrier-returns": ("not noticed", "right"),
    "ddp-stops-after-ten": ("wrong (`amp-diverges`)", "right"),
    "threads-grow": ("not noticed", "right"),
    "rank-does-not-end": (
        "not noticed: ranks leave without waiting for threads",
        "right, the row expects the thread itself, in device",
    ),
    "compiled-tanh": ("not noticed", "right"),
    "lstm-backwards": ("right", "–"),
    "blocking-recv-stale": ("right", "–"),
    "embedding-bag-mean-sums": ("right", "–"),
    "sigterm-blocked": ("right", "–"),
    "foreach-leaves-last": ("right", "–"),
    "rank-slow-files": ("right", "–"),
    "rank-sleeps-in-step": ("right", "–"),
    "buffers-not-restored": ("right", "–"),
    "gradient-hooks-ignored": ("right", "–"),
    "stdout-closed": ("right", "–"),
    "randn-repeats": ("right", "–"),
    "bitwise-or-adds": ("right", "–"),
}
