"""The eight that are opened after their first result."""

from __future__ import annotations

from smoke.faults.means import all_of, patched, unshared, variables
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("worker-ends-quietly", "A worker of a DataLoader ends with status 0 at its second batch (a library calls exit)", "dataloader", "dataloader-worker-killed", """
        import os
        from torch.utils.data._utils import fetch
        real, calls = fetch._MapDatasetFetcher.fetch, [0]
        def fetching(self, places):
            calls[0] += 1
            if calls[0] == 2 and torch.utils.data.get_worker_info() is not None:
                os._exit(0)
            return real(self, places)
        import torch
        fetch._MapDatasetFetcher.fetch = fetching
    """, when="torch.utils.data"),
    row("batch-served-again", "A worker of a DataLoader serves every fifth time the batch before once more (a cache with a wrong key)", "dataloader", "dataloader-loses-samples", """
        import torch
        from torch.utils.data._utils import fetch
        real, calls, kept = fetch._MapDatasetFetcher.fetch, [0], []
        def fetching(self, places):
            calls[0] += 1
            if torch.utils.data.get_worker_info() is None or calls[0] % 5 or not kept:
                kept[:] = [real(self, places)]
            return kept[0]
        fetch._MapDatasetFetcher.fetch = fetching
    """, when="torch.utils.data"),
    row("other-build", "One rank has the same release of torch from another build (another commit, another CUDA)", "rendezvous", "torch-versions-mixed", """
        import torch
        torch.version.git_version = "0" * 40
        torch.__version__ = type(torch.__version__)(torch.__version__.partition("+")[0] + "+cu118")
        torch.version.__version__ = torch.__version__
    """, rank=1, seen="rank 1"),
    row("disk-fills-midway", "Another process fills the disk for checkpoints (24 MB) while a checkpoint is written", "checkpoint", "disk-full-or-quota", stages="device,checkpoint",
        inject=all_of(unshared("--mount", "mkdir {folder}/disk\nmount -t tmpfs -o size=24m,mode=1777 tmpfs {folder}/disk"), variables(TMPDIR="{folder}/disk"), patched("""
            import os
            import torch
            real = torch.save
            def save(held, place, *args, **more):
                try:
                    with open(os.path.join(os.environ["TMPDIR"], "others"), "ab", buffering=0) as file:
                        while file.write(bytes(1 << 16)):
                            pass
                except OSError:
                    pass
                return real(held, place, *args, **more)
            torch.save = save
        """)), means="namespace"),
    row("shards-of-before", "What one rank reads of a sharded checkpoint that was written again is what it read before (a network file system's cache)", "checkpoint-sharded",
        "sharded-checkpoint-differs", """
        import contextlib
        import io
        from torch.distributed.checkpoint import filesystem as place
        real, held = place.FileSystem.create_stream, {}
        @contextlib.contextmanager
        def create_stream(self, path, mode):
            with real(self, path, mode) as stream:
                if mode != "rb":
                    yield stream
                else:
                    yield io.BytesIO(held.setdefault(str(path), stream.read()))
        place.FileSystem.create_stream = create_stream
    """, rank=1, when="torch.distributed.checkpoint.filesystem"),
    row("bound-in-between", "One rank is bound to one CPU by a library as soon as it takes its first gradient", "stragglers", "ranks-unlike", """
        import os
        import torch
        real = torch.Tensor.backward
        def backward(self, *args, **more):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            return real(self, *args, **more)
        torch.Tensor.backward = backward
    """, rank=1, stages="train,stragglers", seen="rank 1"),
    row("forked-beside-a-lock", "A thread of the rank holds a lock as workers of a DataLoader are forked, and they want it", "dataloader", "dataloader-worker-hung", """
        import threading
        import time
        from torch.utils.data._utils import worker
        real, lock = worker._worker_loop, threading.Lock()
        def hold():
            while True:
                with lock:
                    time.sleep(0.5)
        threading.Thread(target=hold, daemon=True).start()
        def loop(*args, **more):
            with lock:
                pass
            return real(*args, **more)
        worker._worker_loop = loop
    """, when="torch.utils.data"),
    row("workers-do-not-leave", "Workers of a DataLoader do not heed its word to end", "dataloader", "dataloader-workers-stay", """
        import signal
        import time
        from torch.utils.data._utils import worker
        real = worker._worker_loop
        def loop(*args, **more):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            real(*args, **more)
            time.sleep(600)
        worker._worker_loop = loop
    """, when="torch.utils.data"),
)  # fmt: skip
