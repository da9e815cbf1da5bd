"""How each fault of the list was graded at first (before anything was built for it) and last: smoke.faults.lists.list_02, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS = {
    "turned-weights-stuck": ("not noticed", "right"),
    "groups-mixed-up": ("not noticed", "right"),
    "no-inodes": ("right", "–"),
    "schedule-skips-at-milestone": ("not noticed", "right"),
    "warnings-are-errors": ("not noticed: the row broke nothing, training works under it", "the same; no fault"),
    "tmpdir-without-sockets": ("wrong (`dataloader-worker-hung`)", "right"),
    "shm-manager-not-executable": ("not noticed", "right"),
    "no-file-locks": ("right", "–"),
    "hook-of-a-monitor": ("not noticed", "right"),
    "worker-init-left-out": ("not noticed", "right"),
    "compiler-that-is-gone": ("right", "–"),
    "float64-by-float32": ("not noticed", "right"),
    "groups-of-one-rate": ("not noticed", "right"),
    "multinomial-uniform": ("not noticed", "right"),
    "autocast-off-after-nested": ("not noticed", "right"),
    "tracer-on-one-rank": (
        "not noticed: it slowed loading by less than the bound",
        "right, the row expects the tracer itself (it was `straggler-loading`)",
    ),
    "fsync-fails": ("right", "–"),
    "profiler-left-on": ("not noticed", "right"),
    "shm-full-of-others": ("right", "–"),
    "compile-disk-small": ("right", "–"),
    "no-linker": ("right", "–"),
    "rank-interrupted": (
        "not noticed: the row broke nothing (where it ran, SIGINT was ignored)",
        "right; it was `rank-crashed` by reading",
    ),
    "bfloat16-loaded-off": ("not noticed", "right"),
    "waits-too-short": ("right", "–"),
}
