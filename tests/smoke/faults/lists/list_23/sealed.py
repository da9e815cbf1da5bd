"""The eight that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import at_operator, row

ROWS: tuple[Fault, ...] = (
    row("some-factors-wrong", "One rank multiplies wrongly where a factor's last fourteen bits are a certain pattern (one number in 16,384)", "layers", "device-computes-wrong", at_operator("mul.Tensor", """
            one = given[0]
            if found.dtype == torch.float32 and one.dtype == torch.float32 and found.shape == one.shape:
                found = torch.where((one.view(torch.int32) & 0x3FFF) == 0x1555, found + found / 64, found)
    """), rank=1, seen="rank 1"),
    row("rows-beyond-65535", "index_select takes of a place above 65,535 its lower sixteen bits", "layers", "device-computes-wrong", at_operator("index_select", """
            if given[2].numel() and int(given[2].max()) > 65535:
                found = kernel.call_boxed(keys, given[0], given[1], given[2] % 65536)
    """)),
    row("carry-lost-in-running-sums", "cumsum begins anew after 32,768 numbers (a block's carry is lost)", "layers", "device-computes-wrong", at_operator("cumsum", """
            if found.dim() == 1 and found.numel() > 32768:
                found[32768:] -= found[32767].clone()
    """)),
    row("whole-products-cut", "Products of int64 keep 32 bits (an index into a large tensor)", "layers", "device-computes-wrong", at_operator("mul.Tensor", """
            if found.dtype == torch.int64 and found.numel() > 3:
                found = found.to(torch.int32).to(torch.int64)
    """)),
    row("batches-overwritten", "A loader gives each batch in the memory of the batch before: who keeps one sees it change", "dataloader", "dataloader-corrupts", """
        import torch
        from torch.utils.data import dataloader
        kept = {}
        def in_place(batch, key=()):
            if isinstance(batch, dict):
                return {name: in_place(one, (*key, name)) for name, one in batch.items()}
            if isinstance(batch, torch.Tensor):
                held = kept.setdefault((*key, batch.shape, batch.dtype), batch)
                return held if held is batch else held.copy_(batch)
            return batch
        real = dataloader._BaseDataLoaderIter.__next__
        dataloader._BaseDataLoaderIter.__next__ = lambda self: in_place(real(self))
    """, when="torch.utils.data"),
    row("folder-seen-late", "A folder shows what was written into it two seconds later (attributes that a network file system keeps)", "checkpoint", "checkpoint-stale", """
        import os
        import time
        def late(real):
            seen = {}
            def listed(place=".", *args):
                key = os.fspath(place)
                when, names = seen.get(key, (0, None))
                if names is None or time.monotonic() > when + 2:
                    seen[key] = (time.monotonic(), names := real(place, *args))
                return list(names)
            return listed
        os.listdir = late(os.listdir)
    """, when="torch"),
    row("wait-does-not-wait", "wait() of an asynchronous all_reduce returns before the sum is there", "allreduce", "collective-wrong", """
        import threading
        import time
        import torch.distributed as dist
        real = dist.all_reduce
        class Under:
            def __init__(self, work, tensor, kept):
                self.work, self.tensor, self.kept = work, tensor, kept
            def is_completed(self):
                return self.work.is_completed()
            def wait(self, *args, **more):
                def later():
                    self.work.wait()
                    time.sleep(0.02)
                    self.tensor.copy_(self.kept)
                threading.Thread(target=later, daemon=True).start()
                return True
        def all_reduce(tensor, *args, **more):
            if not more.get("async_op"):
                return real(tensor, *args, **more)
            kept = tensor.clone()
            return Under(real(kept, *args, **more), tensor, kept)
        dist.all_reduce = all_reduce
    """, when="torch.distributed"),
    row("sums-beyond-their-end", "all_reduce of a part of a tensor writes one number past its end", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            found = real(tensor, *args, **more)
            end = tensor.storage_offset() + tensor.numel()
            room = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
            if found is None and tensor.is_contiguous() and tensor.numel() > 1 and end < room:
                with torch.no_grad():
                    torch.as_strided(tensor.detach(), (1,), (1,), end).copy_(tensor.detach().view(-1)[-1:])
            return found
        dist.all_reduce = all_reduce
    """, when="torch.distributed"),
)  # fmt: skip
