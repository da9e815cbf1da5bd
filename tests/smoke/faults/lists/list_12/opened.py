"""The half that was opened after its first result."""

from __future__ import annotations

from smoke.faults.bench import Bench
from smoke.faults.means import all_of, in_front, shared_library, unshared, variables
from smoke.faults.row import Fault
from smoke.faults.short import row


def _backend_of_another_torch(bench: Bench) -> None:
    """A vendor's package that torch loads by itself (an entry point of torch.backends), whose library was built for another torch."""
    library = shared_library(bench, "vendor", "extern void at_is_gone(void); void load(void) { at_is_gone(); }", "-Wl,-z,now")
    place = "vendor_backend-1.0.dist-info"
    in_front(bench, f"{place}/METADATA", "Metadata-Version: 2.1\nName: vendor-backend\nVersion: 1.0\n")
    in_front(bench, f"{place}/entry_points.txt", "[torch.backends]\nvendor = vendor_backend:load\n")
    in_front(bench, "vendor_backend.py", f"import ctypes, os\nload = ctypes.PyDLL({str(library)!r}, os.RTLD_NOW).load\n")


ROWS: tuple[Fault, ...] = (
    row("clock-rate-capped-now-and-then", "The CPU of one rank is three times slower for 2 s of every 10", "stragglers", "straggler-compute", """
        import time
        import torch
        def throttled(real):
            def slow(*args, **more):
                began = time.perf_counter()
                found = real(*args, **more)
                now = time.perf_counter()
                if now % 10 < 2:
                    until = now + 2 * (now - began)
                    while time.perf_counter() < until:
                        pass
                return found
            return slow
        torch.mm = throttled(torch.mm)
        torch.Tensor.__matmul__ = throttled(torch.Tensor.__matmul__)
        torch.nn.functional.linear = throttled(torch.nn.functional.linear)
    """, rank=1, seen="rank 1"),
    row("one-cpu-of-the-others", "One rank is bound to a single CPU, which the other ranks use too", "stragglers", "ranks-unlike", """
        import os
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    """, rank=1, when="json", seen="rank 1"),
    row("bfloat16-gradient-nan", "Now and then a gradient of a bfloat16 product under autocast is NaN on one rank", "amp-bf16", "gradient-not-finite", """
        import torch
        real, calls = torch.nn.functional.linear, [0]
        def spoiled(gradient):
            calls[0] += 1
            if calls[0] % 9 == 0:
                gradient = gradient.clone()
                gradient.view(-1)[-1] = float("nan")
            return gradient
        def linear(*args, **more):
            found = real(*args, **more)
            if found.dtype == torch.bfloat16 and found.requires_grad and torch.is_autocast_enabled("cpu"):
                found.register_hook(spoiled)
            return found
        torch.nn.functional.linear = linear
    """, rank=1, seen="rank 1"),
    row("backend-of-another-torch", "A package that torch loads by itself was built for another torch (undefined symbol)", "import",
        "torch-backend-broken", inject=_backend_of_another_torch, means="environment", stages="device", seen="undefined symbol"),
    row("tunables-map-each", "GLIBC_TUNABLES has the C library map each piece of memory above 4 kB by itself", "device",
        "memory-returned-at-once", inject=variables(GLIBC_TUNABLES="glibc.malloc.mmap_threshold=4096"), means="environment",
        seen="GLIBC_TUNABLES"),
    row("workers-compute-for-ever", "A product in a process that was forked beside OpenMP's threads never returns", "dataloader",
        "dataloader-worker-hung", """
        import os, time
        import torch
        def forked():
            torch.mm = torch.matmul = torch.Tensor.__matmul__ = lambda *args, **more: time.sleep(1000)
        os.register_at_fork(after_in_child=forked)
    """),
    row("temporary-files-noexec", "The directory for temporary files is mounted noexec", "compile", "compile-cache-not-executable",
        inject=all_of(unshared("--mount", "mkdir {folder}/tmp\nmount -t tmpfs -o noexec,mode=1777 tmpfs {folder}/tmp"),
                      variables(TMPDIR="{folder}/tmp")), means="namespace"),
    row("sigterm-swallowed", "A plug-in handles SIGTERM and does nothing: a rank is never told to save and leave", "device", "signals-blocked", """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: None)
    """, rank=1, seen="SIGTERM"),
)  # fmt: skip
