"""What is odd and breaks nothing: clocks that are set before anything is timed, short pauses, disks with little room, threads beside."""

from __future__ import annotations

from collections.abc import Mapping

from smoke.faults.means import all_of, patched, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

_WAYS: Mapping[str, tuple[str, str, Inject]] = {
    "clock-set-at-first": ("The time of both ranks is an hour ahead of the driver's", "sitecustomize", patched("""
        import time
        real = time.time
        time.time = lambda: real() + 3600
    """)),
    "worker-pauses-once": ("A worker of a DataLoader pauses for 6 s at one batch", "sitecustomize", patched("""
        import time
        from torch.utils.data._utils import fetch
        import torch
        real, calls = fetch._MapDatasetFetcher.fetch, [0]
        def fetching(self, places):
            calls[0] += 1
            if calls[0] == 3 and torch.utils.data.get_worker_info() is not None:
                time.sleep(6)
            return real(self, places)
        fetch._MapDatasetFetcher.fetch = fetching
    """, when="torch.utils.data")),
    "late-start": ("One rank starts 15 s after the other", "sitecustomize", patched("""
        import time
        time.sleep(15)
    """, rank=1)),
    "threads-that-sleep": ("A library leaves eight threads in each rank that sleep", "sitecustomize", patched("""
        import threading
        import time
        for _ in range(8):
            threading.Thread(target=lambda: time.sleep(10000), daemon=True).start()
    """)),
    "little-room": ("The disk for temporary files has 400 MB", "namespace",
        all_of(unshared("--mount", "mkdir {folder}/disk\nmount -t tmpfs -o size=400m,mode=1777 tmpfs {folder}/disk"), variables(TMPDIR="{folder}/disk"))),
    "bound-to-all": ("A launcher binds each rank to all CPUs of the host, by number", "sitecustomize", patched("""
        import os
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0)))
    """)),
}  # fmt: skip

_TOLD: Mapping[str, tuple[str, str]] = {"clock-set-at-first": ("device", "clock-skew")}
"""Programs that are told another time than the kernel's have a false one, on all ranks alike or not."""

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, *_TOLD.get(name, ("", "")), inject=inject, means=means, stages="")
    for name, (what, means, inject) in _WAYS.items()
)
