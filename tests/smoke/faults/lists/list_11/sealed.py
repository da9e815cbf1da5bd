"""The half that stays closed until the end: only its first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("powersgd-alone", "PowerSGD leaves each rank its own gradients", "ddp", "ddp-gradients-wrong", """
        import sys
        import torch
        hooks = sys.modules["torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"]
        def powerSGD_hook(state, bucket):
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done
        hooks.powerSGD_hook = powerSGD_hook
    """, when="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook", seen="powerSGD"),
    row("bf16-hook-doubles", "The hook that sends gradients in bfloat16 gives twice the mean", "ddp", "ddp-gradients-wrong", """
        import sys
        hooks = sys.modules["torch.distributed.algorithms.ddp_comm_hooks.default_hooks"]
        real = hooks.bf16_compress_hook
        def bf16_compress_hook(group, bucket):
            return real(group, bucket).then(lambda future: future.value() * 2)
        hooks.bf16_compress_hook = bf16_compress_hook
    """, when="torch.distributed.algorithms.ddp_comm_hooks.default_hooks", seen="bf16_compress_hook"),
    row("zero-steps-twice", "One rank steps twice with its part in ZeroRedundancyOptimizer", "ddp", "zero-step-wrong", """
        import torch.distributed.optim as optim
        real = optim.ZeroRedundancyOptimizer._local_step
        def _local_step(self, *args, **more):
            real(self, *args, **more)
            return real(self, *args, **more)
        optim.ZeroRedundancyOptimizer._local_step = _local_step
    """, rank=0, when="torch.distributed.optim"),
    row("grad-of-first", "torch.func.grad ignores argnums", "layers", "function-transform-wrong", """
        import torch
        real = torch.func.grad
        torch.func.grad = lambda function, argnums=0, has_aux=False: real(function, 0, has_aux)
    """, seen="grad"),
    row("gathers-wrong", "One rank's last element is another before each all_gather", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_gather
        def all_gather(parts, own, *args, **more):
            own = own.clone()
            if own.is_floating_point():
                own.view(-1)[-1] += 1
            return real(parts, own, *args, **more)
        dist.all_gather = all_gather
    """, rank=0, when="torch.distributed", seen="rank 0 gives"),
    row("worker-repeats", "Worker 0 gives a sample the content of the one before it", "dataloader", "dataloader-corrupts", """
        import torch
        import torch.utils.data._utils.fetch as fetch
        real = fetch._MapDatasetFetcher.fetch
        def wrong(self, wanted):
            found = real(self, wanted)
            info = torch.utils.data.get_worker_info()
            if info and info.id == 0 and isinstance(found, dict) and "content" in found and found["content"].shape[0] > 3:
                found["content"][3] = found["content"][2]
            return found
        fetch._MapDatasetFetcher.fetch = wrong
    """, when="torch.utils.data", seen="worker 0"),
    row("fourth-exchange-late", "Each fourth all_reduce of one rank begins 30 ms late", "allreduce", "collective-slow", """
        import time
        import torch.distributed as dist
        real, calls = dist.all_reduce, [0]
        def all_reduce(*args, **more):
            calls[0] += 1
            if calls[0] % 4 == 0:
                time.sleep(0.03)
            return real(*args, **more)
        dist.all_reduce = all_reduce
    """, rank=0, when="torch.distributed", seen="rank 0"),
)  # fmt: skip
