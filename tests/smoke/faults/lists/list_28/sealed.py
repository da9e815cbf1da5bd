"""The seven that stay sealed until the end."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("pieces-of-a-group-reversed", "What is gathered within a group (all_gather, group=) comes in the opposite order; among all ranks it comes in theirs", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real, joined = dist.all_gather, dist.all_gather_into_tensor
        def is_own(group):
            return group is not None and group is not dist.group.WORLD
        def all_gather(pieces, given, group=None, *args, **more):
            return real(pieces[::-1] if is_own(group) else pieces, given, group, *args, **more)
        def all_gather_into_tensor(found, given, group=None, *args, **more):
            if not is_own(group):
                return joined(found, given, group, *args, **more)
            pieces = [torch.empty_like(given) for _ in range(dist.get_world_size(group))]
            real(pieces, given, group)
            found.view(-1).copy_(torch.cat([one.view(-1) for one in pieces[::-1]]))
        dist.all_gather, dist.all_gather_into_tensor = all_gather, all_gather_into_tensor
    """, when="torch.distributed", stages="rendezvous,allreduce"),
    row("later-sums-left-out", "all_reduce with async_op=True leaves bfloat16 as it was, and says that it is done", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, async_op=False, **more):
            left = async_op and tensor.dtype == torch.bfloat16
            return real(tensor.clone() if left else tensor, *args, async_op=async_op, **more)
        dist.all_reduce = all_reduce
    """, when="torch.distributed"),
    row("ddp-group-divides-by-all", "DDP within a group of ranks (process_group=) divides its gradients by the number of all ranks", "ddp", "ddp-gradients-wrong", """
        import torch
        import torch.distributed as dist
        kind = torch.nn.parallel.DistributedDataParallel
        real = kind.__init__
        def made(self, module, *args, process_group=None, **more):
            real(self, module, *args, process_group=process_group, **more)
            if process_group is not None:
                share = dist.get_world_size(process_group) / dist.get_world_size()
                for one in module.parameters():
                    if one.requires_grad:
                        one.register_hook(lambda slope: slope * share)
        kind.__init__ = made
    """, when="torch.nn.parallel.distributed"),
    row("last-of-a-stream", "The last batch of an iterable data set is lost where it is short, drop_last or not", "dataloader", "dataloader-loses-samples", """
        import torch
        kind = torch.utils.data._utils.fetch._IterableDatasetFetcher
        real = kind.__init__
        def made(self, *args, **more):
            real(self, *args, **more)
            self.drop_last = True
        kind.__init__ = made
    """, when="torch.utils.data"),
    row("arrays-as-in-memory", "torch.from_numpy gives the numbers of an array whose axes are turned (a picture's channels) in the order of its memory", "layers", "device-computes-wrong", """
        import torch
        real = torch.from_numpy
        def from_numpy(array):
            if array.ndim > 1 and array.T.flags.c_contiguous and not array.flags.c_contiguous:
                return real(array.T).reshape(array.shape)
            return real(array)
        torch.from_numpy = from_numpy
    """),
    row("betas-of-the-first", "Adam and AdamW take the betas of their first group of parameters for all", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.Adam.step
        def step(self, *args, **more):
            for group in self.param_groups:
                group["betas"] = self.param_groups[0]["betas"]
            return real(self, *args, **more)
        torch.optim.Adam.step = step
    """, when="torch.optim.adam"),
    row("second-model-not-synchronised", "DDP leaves out the gradients of a second model whose forward pass comes before the first one's backward pass (GANs, two towers)", "ddp", "ddp-gradients-not-synchronised", """
        import torch
        kind, begun = torch.nn.parallel.DistributedDataParallel, set()
        real = kind.forward
        def forward(self, *args, **more):
            alone, wished = not begun - {id(self)}, self.require_backward_grad_sync
            self.require_backward_grad_sync = wished and alone
            found = real(self, *args, **more)
            self.require_backward_grad_sync = wished
            if isinstance(found, torch.Tensor) and found.requires_grad:
                begun.add(id(self))
                found.register_hook(lambda slope: begun.discard(id(self)))
            return found
        kind.forward = forward
    """, when="torch.nn.parallel.distributed"),
)  # fmt: skip
