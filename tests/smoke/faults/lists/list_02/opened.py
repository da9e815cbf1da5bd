"""Twenty faults of our own, opened after the first result."""

from __future__ import annotations

import os
import signal
import time

from smoke.faults.bench import Bench
from smoke.faults.short import row, slowed


def _halting(bench: Bench) -> None:
    """Rank 1 runs half of the time: what a CPU quota, or a debugger's sampling, does."""

    def watch() -> None:
        until = time.monotonic() + 150
        while time.monotonic() < until:
            pid = bench.rank(1)
            if pid is None:
                time.sleep(0.2)
                continue
            try:
                while time.monotonic() < until:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.03)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.03)
            except ProcessLookupError:
                continue

    bench.watchers.append(watch)


ROWS = (
    row("gelu-gradient-by-tanh", "GELU's gradient is that of the approximation", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.gelu
        def gelu(one, approximate="none"):
            rough = real(one, approximate="tanh")
            return rough + (real(one.detach()) - rough.detach())
        torch.nn.functional.gelu = gelu
    """, seen="(?i)gelu"),
    row("ignore-index-counted", "cross_entropy divides by the ignored targets, too", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.cross_entropy
        def loss(one, target, *args, **more):
            found = real(one, target, *args, **more)
            kept = (target != -100).float().mean()
            return found * kept
        torch.nn.functional.cross_entropy = loss
    """, seen="cross_entropy"),
    row("batch-norm-eval-trains", "BatchNorm in eval takes the batch's figures", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.batch_norm
        def batch_norm(one, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
            if training:
                return real(one, mean, var, weight, bias, True, momentum, eps)
            return real(one, mean.clone(), var.clone(), weight, bias, True, momentum, eps)
        torch.nn.functional.batch_norm = batch_norm
    """, seen="(?i)batch_?norm"),
    row("adam-without-correction", "AdamW leaves out the correction of its first steps", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.AdamW.step
        def step(self, *args, **more):
            for state in self.state.values():
                state["step"] += 1000
            return real(self, *args, **more)
        torch.optim.AdamW.step = step
    """, seen="AdamW"),
    row("nesterov-ignored", "SGD ignores nesterov", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.SGD.step
        def step(self, *args, **more):
            for group in self.param_groups:
                group["nesterov"] = False
            return real(self, *args, **more)
        torch.optim.SGD.step = step
    """, seen="SGD"),
    row("zero-grad-does-nothing", "zero_grad leaves the gradients", "optimizer", "gradients-not-cleared", """
        import torch
        torch.optim.Optimizer.zero_grad = lambda self, *args, **more: None
    """),
    row("step-schedule-each-step", "StepLR decays at every step", "optimizer", "schedule-wrong", """
        import torch
        real = torch.optim.lr_scheduler.StepLR.__init__
        def init(self, optimizer, step_size, gamma=0.1, *args, **more):
            real(self, optimizer, 1, gamma, *args, **more)
        torch.optim.lr_scheduler.StepLR.__init__ = init
    """, seen="StepLR"),
    row("objects-not-broadcast", "broadcast_object_list leaves each rank its own objects", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.broadcast_object_list
        def broadcast(objects, *args, **more):
            kept = list(objects)
            real(objects, *args, **more)
            objects[:] = kept
        dist.broadcast_object_list = broadcast
    """, seen="object"),
    row("subgroup-loses-a-share", "all_reduce in a group of some ranks leaves one's share out", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            if more.get("group") is not None and more["group"] is not dist.group.WORLD and tensor.numel() > 1:
                tensor.zero_()
            return real(tensor, *args, **more)
        dist.all_reduce = all_reduce
    """, seen="group"),
    row("edge-of-a-product", "The last element of products whose size is no multiple of 32 is wrong", "stress", "gemm-wrong", """
        import torch
        real = torch.mm
        def mm(*args, **more):
            found = real(*args, **more)
            if found.shape[0] % 32 and found.shape[0] > 64:
                found[-1, -1] += 1
            return found
        torch.mm = mm
    """, rank=1, seen="rank 1"),
    row("transposed-product", "A product with a transposed factor has a wrong element", "stress", "gemm-wrong", """
        import torch
        real = torch.mm
        def mm(one, other, *args, **more):
            found = real(one, other, *args, **more)
            if not other.is_contiguous() and found.shape[0] > 64:
                found[3, 5] += 1
            return found
        torch.mm = mm
    """, rank=0, seen="rank 0"),
    row("one-sum-of-200", "One of 200 sums is off on one rank", "stress", "silent-data-corruption", """
        import torch
        real, calls = torch.sum, [0]
        def total(*args, **more):
            found = real(*args, **more)
            calls[0] += 1
            if calls[0] % 200 == 0 and found.is_floating_point():
                found = found * (1 + 2.0**-12)
            return found
        torch.sum = total
    """, rank=0, seen="rank 0"),
    row("one-copy-of-100", "One of 100 copies within the device has a wrong bit", "stress", "silent-data-corruption", """
        import torch
        real, calls = torch.Tensor.copy_, [0]
        def copy_(self, *args, **more):
            found = real(self, *args, **more)
            calls[0] += 1
            if calls[0] % 100 == 0 and self.numel() > 64:
                self.view(-1)[9] = 3
            return found
        torch.Tensor.copy_ = copy_
    """, rank=1, seen="rank 1"),
    row("memory-three-times-slower", "Copies take one rank three times as long", "stragglers", "straggler-memory",
        slowed("Tensor.copy_", 3, 4096), rank=0, seen="rank 0.*memory"),
    row("loading-slow-on-one-rank", "Putting a batch together takes one rank longer", "stragglers", "straggler-loading", """
        import time
        import torch.utils.data._utils.collate as collate
        import torch.utils.data._utils as utils
        real = collate.default_collate
        def slow(*args, **more):
            until = time.perf_counter() + 0.004
            while time.perf_counter() < until:
                pass
            return real(*args, **more)
        collate.default_collate = slow
        import torch.utils.data.dataloader as dataloader
        dataloader.default_collate = slow
    """, rank=1, when="torch.utils.data.dataloader", seen="rank 1.*loading"),
    row("halting-rank", "One rank runs half of the time", "stragglers", "straggler-held-back", inject=_halting, means="signal", seen="rank 1"),
    row("gradient-nan-on-one-rank", "A gradient of one rank is NaN, its loss is not", "ddp", "gradient-not-finite", """
        import torch
        real = torch.relu
        class Poisoned(torch.autograd.Function):
            @staticmethod
            def forward(ctx, one):
                return one.clone()
            @staticmethod
            def backward(ctx, gradient):
                gradient = gradient.clone()
                gradient.view(-1)[0] = float("nan")
                return gradient
        def relu(one):
            found = real(one)
            return Poisoned.apply(found) if found.requires_grad and found.dtype == torch.float32 else found
        torch.relu = relu
    """, rank=0, seen="rank 0"),
    row("weights-nan-after-step", "A step of one rank's optimizer leaves a NaN", "train", "loss-not-finite", """
        import torch
        real, calls = torch.optim.AdamW.step, [0]
        def step(self, *args, **more):
            found = real(self, *args, **more)
            calls[0] += 1
            if calls[0] == 17:
                self.param_groups[0]["params"][0].data.view(-1)[0] = float("nan")
            return found
        torch.optim.AdamW.step = step
    """, rank=1, seen="rank 1"),
    row("dropout-repeats-itself", "Dropout drops the same elements each time", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.dropout
        def dropout(one, p=0.5, training=True, inplace=False):
            state = torch.get_rng_state()
            found = real(one, p, training, inplace)
            torch.set_rng_state(state)
            return found
        torch.nn.functional.dropout = dropout
    """, seen="dropout"),
    row("loads-the-first-again", "A second torch.load of a path gives what the first gave", "checkpoint", "checkpoint-stale", """
        import torch
        real, held = torch.load, {}
        def load(path, *args, **more):
            if path not in held:
                held[path] = real(path, *args, **more)
            return held[path]
        torch.load = load
    """),
)  # fmt: skip
