"""The four that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("slower-now-and-then", "The products of one rank take a quarter longer in each second half second", "stragglers", "straggler-compute", """
        import time
        import torch
        def slowed(real):
            def slow(*args, **more):
                began = time.perf_counter()
                found = real(*args, **more)
                if began % 1.0 > 0.5:
                    until = began + 1.25 * (time.perf_counter() - began)
                    while time.perf_counter() < until:
                        pass
                return found
            return slow
        torch.mm, torch.nn.functional.linear = slowed(torch.mm), slowed(torch.nn.functional.linear)
    """, rank=1, seen="rank 1"),
    row("bf16-sum-flips", "Each seventh all_reduce of bfloat16 loses the lowest bit of one element on one rank", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real, calls = dist.all_reduce, [0]
        def all_reduce(tensor, *args, **more):
            found = real(tensor, *args, **more)
            if tensor.dtype == torch.bfloat16 and not more.get("async_op"):
                calls[0] += 1
                if calls[0] % 7 == 0 and tensor.numel() > 8:
                    bits = tensor.view(torch.int16).view(-1)
                    bits[5] ^= 1
            return found
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1"),
    row("large-copies-halved", "Copies of 16 MB and more take one rank twice as long (a memory channel less)", "stragglers", "straggler-memory", """
        import time
        import torch
        def slowed(real):
            def slow(held, *args, **more):
                began = time.perf_counter()
                found = real(held, *args, **more)
                if isinstance(held, torch.Tensor) and held.numel() >= 1 << 22:
                    until = began + 2 * (time.perf_counter() - began)
                    while time.perf_counter() < until:
                        pass
                return found
            return slow
        for name in ("copy_", "clone", "add_", "mul_"):
            setattr(torch.Tensor, name, slowed(getattr(torch.Tensor, name)))
    """, rank=1, seen="rank 1"),
    row("seeds-one-more", "One rank makes each seed that it is given one more", "layers", "random-numbers-wrong", """
        import torch
        real = torch.manual_seed
        torch.manual_seed = torch.random.manual_seed = lambda seed: real(int(seed) + 1)
    """, rank=1, stages="device,layers", seen="rank 1"),
)  # fmt: skip
