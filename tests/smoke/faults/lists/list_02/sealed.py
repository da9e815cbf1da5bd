"""Twenty faults of our own that stayed sealed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.short import every_nth, row, slowed

ROWS = (
    row("relu-leaks", "ReLU lets a hundredth of what is negative through", "layers", "layer-wrong", """
        import torch
        torch.relu = lambda one: torch.nn.functional.leaky_relu(one, 0.01)
        torch.nn.functional.relu = lambda one, inplace=False: torch.nn.functional.leaky_relu(one, 0.01)
    """, seen="(?i)relu"),
    row("bias-twice", "A linear layer adds its bias twice", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.linear
        torch.nn.functional.linear = lambda one, weight, bias=None: real(one, weight, bias) + (0 if bias is None else bias)
    """, seen="(?i)linear"),
    row("attention-sees-ahead", "Attention ignores that it is causal", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = lambda *args, **more: real(*args, **{**more, "is_causal": False})
    """, seen="(?i)attention"),
    row("adam-betas-swapped", "AdamW takes its betas the other way round", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.AdamW.__init__
        def init(self, *args, betas=(0.9, 0.999), **more):
            real(self, *args, betas=betas[::-1], **more)
        torch.optim.AdamW.__init__ = init
    """, seen="AdamW"),
    row("momentum-not-restored", "SGD's momentum is not restored from a checkpoint", "checkpoint", "resume-differs", """
        import torch
        real = torch.optim.Optimizer.load_state_dict
        def load(self, *args, **more):
            real(self, *args, **more)
            for state in self.state.values():
                state.pop("momentum_buffer", None)
        torch.optim.Optimizer.load_state_dict = load
    """),
    row("warm-up-from-the-top", "LinearLR begins where it should end", "optimizer", "schedule-wrong", """
        import torch
        real = torch.optim.lr_scheduler.LinearLR.__init__
        def init(self, optimizer, start_factor=1/3, end_factor=1.0, *args, **more):
            real(self, optimizer, end_factor, start_factor if start_factor else 0.5, *args, **more)
        torch.optim.lr_scheduler.LinearLR.__init__ = init
    """, seen="LinearLR"),
    row("objects-scattered-wrong", "scatter_object_list gives each rank the first object", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.scatter_object_list
        def scatter(out, given, *args, **more):
            return real(out, [given[0]] * len(given) if given else given, *args, **more)
        dist.scatter_object_list = scatter
    """, seen="object"),
    row("least-of-whole-numbers", "all_reduce of int64 gives the largest where the least was asked for", "allreduce",
        "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, op=dist.ReduceOp.SUM, *args, **more):
            if tensor.dtype == torch.int64 and op == dist.ReduceOp.MIN:
                op = dist.ReduceOp.MAX
            return real(tensor, op, *args, **more)
        dist.all_reduce = all_reduce
    """, seen="MIN"),
    row("subgroup-broadcast-kept", "A broadcast in a group of some ranks leaves what was there", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.broadcast
        def broadcast(tensor, *args, **more):
            kept = tensor.clone()
            found = real(tensor, *args, **more)
            if more.get("group") is not None:
                tensor.copy_(kept)
            return found
        dist.broadcast = broadcast
    """, seen="group"),
    row("product-to-root-adds", "reduce adds where the root asked for a product", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.reduce
        def reduce(tensor, dst=None, op=dist.ReduceOp.SUM, *args, **more):
            return real(tensor, dst, dist.ReduceOp.SUM if op == dist.ReduceOp.PRODUCT else op, *args, **more)
        dist.reduce = reduce
    """, seen="reduce"),
    row("lowest-bit-of-250", "The lowest bit of one of 250 products is wrong on one rank", "stress", "silent-data-corruption",
        every_nth("mm", 250, "found.view(-1).view(torch.int32 if found.dtype == torch.float32 else torch.int16)[11] ^= 1"), rank=0,
        seen="rank 0"),
    row("bfloat16-of-150", "One of 150 bfloat16 products is wrong on one rank", "stress", "silent-data-corruption", """
        import torch
        real, calls = torch.mm, [0]
        def mm(*args, **more):
            found = real(*args, **more)
            calls[0] += found.dtype == torch.bfloat16
            if found.dtype == torch.bfloat16 and calls[0] % 150 == 0:
                found[1, 1] = 0.5 + found[1, 1] * 2
            return found
        torch.mm = mm
    """, rank=1, seen="rank 1"),
    row("one-clone-of-100", "One of 100 clones has a wrong element", "stress", "silent-data-corruption",
        every_nth("Tensor.clone", 100, "found.view(-1)[5] += 1"), rank=0, seen="rank 0"),
    row("compute-1.4-slower", "Products take one rank 1.4 times as long", "stragglers", "straggler-compute", slowed("mm", 1.4, 64), rank=0,
        seen="rank 0.*compute"),
    row("memory-1.5-slower", "Copies take one rank 1.5 times as long", "stragglers", "straggler-memory",
        slowed("Tensor.copy_", 1.5, 4096), rank=1, seen="rank 1.*memory"),
    row("dataset-slow-on-one-rank", "Making a tensor takes one rank five times as long", "stragglers", "straggler-loading", """
        import time
        import torch
        real = torch.stack
        def stack(*args, **more):
            found = real(*args, **more)
            until = time.perf_counter() + 0.003
            while time.perf_counter() < until:
                pass
            return found
        torch.stack = stack
    """, rank=0, seen="rank 0.*loading"),
    row("graph-kept", "Each backward pass of one rank keeps two megabytes", "train", "memory-grows", """
        import torch
        real, kept = torch.Tensor.backward, []
        def backward(self, *args, **more):
            kept.append(torch.ones(1 << 19))
            return real(self, *args, **more)
        torch.Tensor.backward = backward
    """, rank=1, seen="rank 1"),
    row("sockets-kept", "Each backward pass leaves a socket open", "train", "descriptors-grow", """
        import socket
        import torch
        real, kept = torch.Tensor.backward, []
        def backward(self, *args, **more):
            kept.append(socket.socket())
            return real(self, *args, **more)
        torch.Tensor.backward = backward
    """),
    row("inf-from-one-rank", "The outputs of one rank are infinite", "ddp", "loss-not-finite", """
        import torch
        real = torch.nn.functional.linear
        torch.nn.functional.linear = lambda *args: real(*args) * (float("inf") if torch.is_grad_enabled() and args[0].dtype == torch.float32 else 1)
    """, rank=1, seen="rank 1"),
    row("default-dtype-of-one-rank", "One rank's default dtype is bfloat16", "device", "default-dtype-changed", """
        import torch
        torch.set_default_dtype(torch.bfloat16)
    """, rank=1, stages="device,train", seen="rank 1"),
)  # fmt: skip
