"""Six faults that stay sealed until the rest is built: only their first result counts."""

from __future__ import annotations

from smoke.faults.short import row

ROWS = (
    row("sums-of-bfloat16-off", "One of 60 sums of bfloat16 is off on one rank", "stress", "silent-data-corruption", """
        import torch
        real, calls = torch.sum, [0]
        def wrong(one, *args, **more):
            found = real(one, *args, **more)
            if isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16:
                calls[0] += 1
                if calls[0] % 60 == 0:
                    return found * 1.0625
            return found
        torch.sum = wrong
    """, rank=1),
    row("compiled-last-element", "Compiled code leaves the last element of what it returns as it was", "compile", "compiled-differs", """
        import torch
        real = torch.compile
        def compile(model, *args, **more):
            made = real(model, *args, **more)
            def called(*given):
                found = made(*given)
                keep = torch.ones_like(found)
                keep.view(-1)[-1] = 0
                return found * keep
            return called
        torch.compile = compile
    """),
    row("compiled-without-gradient", "Compiled code loses the gradient of a bias", "compile", "compiled-differs", """
        import torch
        real = torch.compile
        def compile(model, *args, **more):
            made = real(model, *args, **more)
            def called(*given):
                for one in model.parameters():
                    last = one
                last.register_hook(lambda gradient: gradient * 0.5)
                return made(*given)
            return called
        torch.compile = compile
    """),
    row("sharded-sum-for-mean", "FSDP adds gradients over ranks where their mean is due", "fsdp", "fsdp-step-wrong", """
        import torch.distributed as dist
        def summing(real):
            def scatter(*args, **more):
                done = real(*args, **more)
                if done is not None and hasattr(done, "wait"):
                    done.wait()
                more.get("output", args[0] if args else None).mul_(dist.get_world_size())
                return done
            return scatter
        for name in ("reduce_scatter_single", "reduce_scatter_tensor"):  # the first since torch 2.13
            if hasattr(dist, name):
                setattr(dist, name, summing(getattr(dist, name)))
    """),
    row("buffers-of-last-rank", "DDP sends the last rank's buffers where rank 0's are due", "buffers", "buffers-not-broadcast", """
        import torch.nn.parallel.distributed as parallel
        import torch.distributed as dist
        real = parallel.DistributedDataParallel._distributed_broadcast_coalesced
        def broadcast(self, tensors, buffer_size, authoritative_rank=0):
            return real(self, tensors, buffer_size, dist.get_world_size() - 1)
        parallel.DistributedDataParallel._distributed_broadcast_coalesced = broadcast
    """, when="torch.nn.parallel.distributed"),
    row("sampler-pads-with-first", "DistributedSampler gives one rank its first sample again in place of its last", "sampler",
        "sampler-misses-samples", """
        import torch.utils.data.distributed as data
        real = data.DistributedSampler.__iter__
        def order(self):
            held = list(real(self))
            return iter(held[:-1] + held[:1])
        data.DistributedSampler.__iter__ = order
    """, when="torch.utils.data.distributed", rank=1),
)  # fmt: skip
