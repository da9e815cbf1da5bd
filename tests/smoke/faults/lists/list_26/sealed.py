"""The six that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import at_operator, row

ROWS: tuple[Fault, ...] = (
    row("overlap-from-the-fourth-epoch", "From the fourth epoch on each rank's DistributedSampler shuffles by a seed of its own", "sampler", "sampler-shards-overlap", """
        import torch
        kind = torch.utils.data.distributed.DistributedSampler
        real = kind.__iter__
        def places(self):
            before, self.seed = self.seed, self.seed + (1000 * self.rank if self.epoch >= 3 else 0)
            try:
                return real(self)
            finally:
                self.seed = before
        kind.__iter__ = places
    """, when="torch.utils.data.distributed"),
    row("last-bits-of-sums-differ", "One rank's sums (all_reduce) of float32 have another last bit where they are no whole numbers, as in another order", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            found = real(tensor, *args, **more)
            if tensor.dtype == torch.float32 and not more.get("async_op"):
                parts = tensor.detach()
                parts.copy_(torch.where(parts == parts.round(), parts, torch.nextafter(parts, torch.full_like(parts, float("inf")))))
            return found
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1", stages="device,rendezvous,allreduce,ddp"),
    row("eval-stops-at-children", "train() and eval() reach a module's children, and not theirs", "layers", "layer-wrong", """
        import torch
        def train(self, mode=True):
            self.training = mode
            for child in self.children():
                child.training = mode
            return self
        torch.nn.Module.train = train
    """, stages="device,layers,train"),
    row("bmm-now-and-then", "Each 60th product of batches (bmm) of one rank has one wrong number", "stress", "silent-data-corruption", """
        calls = [0]
    """ + at_operator("bmm", """
            calls[0] += 1
            if calls[0] % 60 == 0 and found.numel() > 8:
                found.view(-1)[7] += 1
    """), rank=1, seen="rank 1"),
    row("saves-late", "torch.save comes back before it has written: a thread writes a third of a second later", "checkpoint", "checkpoint-stale", """
        import os, threading, time
        import torch
        real = torch.save
        def save(what, where, *args, **more):
            if not isinstance(where, (str, os.PathLike)):
                return real(what, where, *args, **more)
            import io
            held = io.BytesIO()
            real(what, held, *args, **more)
            def later():
                time.sleep(0.3)
                with open(where, "wb") as file:
                    file.write(held.getvalue())
            threading.Thread(target=later).start()
        torch.save = save
    """),
    row("large-objects-cut", "What broadcast_object_list sends is cut after 64 kB where it is a text", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.broadcast_object_list
        def broadcast_object_list(objects, src=None, *args, **more):
            found = real(objects, src, *args, **more)
            if dist.get_rank():
                objects[:] = [one[:65536] if isinstance(one, (str, bytes)) else one for one in objects]
            return found
        dist.broadcast_object_list = broadcast_object_list
    """, when="torch.distributed"),
)  # fmt: skip
