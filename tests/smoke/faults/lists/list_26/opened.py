"""The twelve that are opened after their first result."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import at_operator, row

ROWS: tuple[Fault, ...] = (
    row("halves-truncated", "One rank's conversions from float32 to bfloat16 cut what they are to round", "layers", "device-computes-wrong", at_operator("copy_", """
            into, out = given[0], given[1]
            if into.dtype == torch.bfloat16 and out.dtype == torch.float32 and into.shape == out.shape and into.numel() > 1:
                into.view(torch.int16).copy_((out.detach().contiguous().view(torch.int32) >> 16).to(torch.int16))
    """), rank=1, seen="rank 1", stages="device,gemm,layers"),
    row("scale-grows-each-step", "GradScaler doubles its scale at each step, whatever its growth_interval", "amp-fp16", "scaler-scale-wrong", """
        import torch
        real = torch.amp.GradScaler.__init__
        def made(self, *args, **more):
            real(self, *args, **more)
            self._growth_interval = 1
        torch.amp.GradScaler.__init__ = made
    """),
    row("synchronised-ten-times", "DDP synchronises the gradients of its first ten passes back, and none after them", "ddp", "ddp-gradients-not-synchronised", """
        import torch
        kind = torch.nn.parallel.DistributedDataParallel
        real = kind.forward
        def forward(self, *args, **more):
            self._calls = getattr(self, "_calls", 0) + torch.is_grad_enabled()
            if self._calls > 10:
                self.require_backward_grad_sync = False
            return real(self, *args, **more)
        kind.forward = forward
    """, when="torch.nn.parallel.distributed"),
    row("sums-are-kept", "A monitor keeps a copy of each sum that one rank gets (all_reduce)", "allreduce", "memory-grows", """
        import torch
        import torch.distributed as dist
        real, kept = dist.all_reduce, []
        def all_reduce(tensor, *args, **more):
            found = real(tensor, *args, **more)
            kept.append(tensor.detach().clone())
            return found
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1", stages="device,rendezvous,allreduce,stragglers,ddp"),
    row("locks-refused", "A network file system without its lock daemon: each lock on a file (flock, lockf) fails (ENOLCK)", "checkpoint", "filesystem-without-locks", """
        import errno, fcntl, os
        def refused(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        fcntl.flock = fcntl.lockf = refused
    """, stages="device,dataloader,checkpoint,rendezvous"),
    row("hooks-fire-once", "A forward hook of a module runs at the first call alone", "layers", "autograd-wrong", """
        import torch
        real = torch.nn.Module.register_forward_hook
        def register_forward_hook(self, hook, **more):
            calls = []
            def once(*args, **words):
                if not calls:
                    calls.append(1)
                    return hook(*args, **words)
            return real(self, once, **more)
        torch.nn.Module.register_forward_hook = register_forward_hook
    """, stages="device,layers,train"),
    row("second-pass-replaces", "A second pass back replaces the gradients of weights of four dimensions (convolutions') in place of adding to them", "accumulate", "accumulation-wrong", """
        import torch
        real, seen = torch.nn.Module.register_parameter, []
        def register_parameter(self, name, one):
            real(self, name, one)
            if one is not None and one.dim() == 4 and one.requires_grad:
                def replaced(held, before=[None]):
                    now = held.grad.clone()
                    if before[0] is not None and before[1:] == [held.grad.data_ptr()] and held.grad.ne(0).any():
                        held.grad.sub_(before[0])
                    before[:] = [held.grad.clone(), held.grad.data_ptr()]
                one.register_post_accumulate_grad_hook(replaced)
        torch.nn.Module.register_parameter = register_parameter
    """, stages="device,conv,layers,optimizer,train,rendezvous,ddp,accumulate"),
    row("python-random-not-restored", "random.setstate does nothing: what augments a resumed training is drawn otherwise", "checkpoint", "resume-differs", """
        import random
        random.setstate = random._inst.setstate = lambda state: None
    """, stages="device,dataloader,checkpoint"),
    row("equal-shapes-swapped", "torch.load of one rank gives the first two tensors of one shape in a dict each other's numbers", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.load
        def load(*args, **more):
            found = real(*args, **more)
            for held in [found, *(found.values() if isinstance(found, dict) else ())]:
                if isinstance(held, dict):
                    shapes = {}
                    for name, one in held.items():
                        if isinstance(one, torch.Tensor) and one.numel() > 1 and (one.shape, one.dtype) in shapes:
                            other = shapes[one.shape, one.dtype]
                            held[name], held[other] = held[other], one
                            break
                        if isinstance(one, torch.Tensor):
                            shapes[one.shape, one.dtype] = name
            return found
        torch.load = load
    """, rank=1, seen="rank 1"),
    row("worker-late-now-and-then", "One in eight batches of one rank's workers comes 80 ms late (a file that is not in the cache)", "stragglers", "straggler-loading", """
        import time
        import torch
        from torch.utils.data._utils import fetch
        real, calls = fetch._MapDatasetFetcher.fetch, [0]
        def fetching(self, places):
            calls[0] += 1
            if torch.utils.data.get_worker_info() is not None and calls[0] % 8 == 0:
                time.sleep(0.08)
            return real(self, places)
        fetch._MapDatasetFetcher.fetch = fetching
    """, rank=1, when="torch.utils.data", seen="rank 1", stages="device,dataloader,rendezvous,allreduce,stragglers"),
    row("usr2-blocked", "Ranks begin with SIGUSR2 blocked, by which a scheduler tells that their time ends (sbatch --signal=USR2)", "device", "signals-blocked", """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    """),
    row("large-sums-late", "One rank comes 50 ms late to each all_reduce of more than 100,000 numbers", "allreduce", "collective-slow", """
        import time
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            if tensor.numel() > 100000:
                time.sleep(0.05)
            return real(tensor, *args, **more)
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1", stages="device,rendezvous,allreduce,stragglers"),
)  # fmt: skip
