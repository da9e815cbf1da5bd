"""The eight that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("fractional-pool-same-places", "nn.FractionalMaxPool3d takes the same regions for each sample, whatever was drawn for it", "layers", "layer-wrong", """
        import torch
        place = torch._C._nn
        real = place.fractional_max_pool3d
        def pool(input, kernel_size, output_size, samples, **more):
            return real(input, kernel_size, output_size, samples[:1].expand_as(samples).contiguous(), **more)
        place.fractional_max_pool3d = pool
    """),
    row("reflection-pad3d-once", "The gradient of nn.ReflectionPad3d counts what is reflected once", "layers", "layer-wrong", """
        import torch
        import torch.nn.functional as F
        real = F.pad
        class Once(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given, pads):
                ctx.pads = pads
                return real(given, pads, "reflect")
            @staticmethod
            def backward(ctx, grad):
                return real(grad, [-one for one in ctx.pads]), None
        def pad(input, pad, mode="constant", value=None):
            if mode == "reflect" and len(pad) == 6 and input.requires_grad:
                return Once.apply(input, pad)
            return real(input, pad, mode, value)
        F.pad = pad
    """),
    row("optimizer-groups-crossed", "An optimizer that is loaded (Optimizer.load_state_dict) gives the last parameter what it remembered of the first, where there are several groups", "checkpoint",
        "resume-differs", """
        import torch
        real = torch.optim.Optimizer.load_state_dict
        def load(self, held):
            state = held["state"]
            if len(held["param_groups"]) > 1 and len(state) > 1:
                first, last = min(state), max(state)
                held = {**held, "state": {**state, last: state[first]}}
            return real(self, held)
        torch.optim.Optimizer.load_state_dict = load
    """, run="some-5"),
    row("polynomial-ends-at-zero", "PolynomialLR jumps to zero one epoch early", "optimizer", "schedule-wrong", """
        from torch.optim import lr_scheduler
        real = lr_scheduler.PolynomialLR.get_lr
        def get_lr(self):
            found = real(self)
            return [0.0 for _ in found] if self.last_epoch >= self.total_iters - 1 else found
        lr_scheduler.PolynomialLR.get_lr = get_lr
    """, when="torch.optim.lr_scheduler", stages="", run="all-2"),
    row("rprop-grows-without-limit", "Rprop ignores its largest step (step_sizes)", "optimizer", "optimizer-wrong", """
        from torch.optim import Rprop
        real = Rprop.__init__
        def begun(self, params, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50), **more):
            real(self, params, lr, etas, (step_sizes[0], 1e9), **more)
        Rprop.__init__ = begun
    """, when="torch.optim"),
    row("adam-complex-real-only", "Adam steps with the real part alone of parameters that are complex numbers", "optimizer", "optimizer-wrong", """
        import torch
        from torch.optim import Adam
        real = Adam.step
        def step(self, closure=None):
            for group in self.param_groups:
                for one in group["params"]:
                    if one.is_complex() and one.grad is not None:
                        one.grad = torch.complex(one.grad.real, torch.zeros_like(one.grad.imag))
            return real(self, closure)
        Adam.step = step
    """, when="torch.optim"),
    row("differentiable-sum-one-way", "The all_reduce that has a gradient (torch.distributed.nn.functional) gives each rank its own gradient, not the sum of all ranks'", "allreduce",
        "collective-wrong", """
        from torch.distributed.nn import functional as place
        place._AllReduce.backward = staticmethod(lambda ctx, grad: (None, None, grad))
    """, when="torch.distributed.nn.functional"),
    row("group-not-destroyed", "destroy_process_group never returns on one rank", "rendezvous", "rank-does-not-end", """
        import time
        import torch.distributed as dist
        def never(*args, **more):
            time.sleep(1e6)
        dist.destroy_process_group = never
    """, rank=1, when="torch.distributed", seen="rank 1"),
)  # fmt: skip
