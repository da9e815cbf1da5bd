"""The six that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("clock-limited-in-bursts", "A power limit stops one rank's core for 3 of each 10 ms", "stragglers", "straggler-compute", """
        import os, signal, subprocess, sys
        subprocess.Popen([sys.executable, "-S", "-c", "import os, signal, sys, time\\npid = int(sys.argv[1])\\ntry:\\n while True:\\n  os.kill(pid, signal.SIGSTOP)\\n  time.sleep(0.003)\\n  os.kill(pid, signal.SIGCONT)\\n  time.sleep(0.007)\\nexcept OSError:\\n pass\\n", str(os.getpid())])
    """, rank=1, when="torch.distributed", seen="rank 1", stages="device,rendezvous,allreduce,stragglers"),
    row("nan-now-and-then", "One rank's LayerNorm gives NaN once in 60 calls", "train", "loss-not-finite", """
        import torch
        real, calls = torch.nn.LayerNorm.forward, [0]
        def forward(self, given):
            calls[0] += 1
            found = real(self, given)
            return found * float("nan") if calls[0] % 60 == 0 else found
        torch.nn.LayerNorm.forward = forward
    """, rank=1, seen="rank 1", stages="device,train,rendezvous,ddp"),
    row("saved-with-a-flipped-bit", "In each file of more than 10 kB that one rank saves (torch.save) a bit in the middle flips afterwards", "checkpoint", "checkpoint-damaged", """
        import os
        import torch
        real = torch.save
        def save(what, where, *args, **more):
            real(what, where, *args, **more)
            if isinstance(where, (str, os.PathLike)) and os.path.getsize(where) > 10000:
                with open(where, "r+b") as file:
                    file.seek(os.path.getsize(where) // 2)
                    one = file.read(1)
                    file.seek(-1, 1)
                    file.write(bytes([one[0] ^ 16]))
        torch.save = save
    """, rank=1, seen="rank 1"),
    row("unscaled-but-one", "unscale_ leaves the first gradient of an optimizer scaled where it has more than three", "amp-fp16", "scaler-unscale-wrong", """
        import torch
        real = torch.amp.GradScaler.unscale_
        def unscale_(self, optimizer):
            grads = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
            kept = grads[0].clone() if len(grads) > 3 else None
            real(self, optimizer)
            if kept is not None:
                grads[0].copy_(kept)
        torch.amp.GradScaler.unscale_ = unscale_
    """),
    row("rate-of-one-rank", "One rank's optimizers take 0.999 times the learning rate that they are given (another configuration)", "optimizer", "optimizer-wrong", """
        import torch
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            def made(self, params, lr=1e-3, *args, inner=kind.__init__, **more):
                inner(self, params, lr * 0.999, *args, **more)
            kind.__init__ = made
    """, rank=1, seen="rank 1", stages="device,optimizer,train,rendezvous,ddp"),
    row("last-key-not-loaded", "A sharded checkpoint's last tensor is not loaded: it stays as it was", "checkpoint-sharded", "sharded-checkpoint-differs", """
        import torch.distributed.checkpoint as dcp
        real = dcp.load
        def load(state_dict, *args, **more):
            def leaves(held):
                for name in sorted(held):
                    if isinstance(held[name], dict):
                        yield from leaves(held[name])
                    elif hasattr(held[name], "shape"):
                        yield held[name]
            last = [*leaves(state_dict)][-1:]
            kept = [one.detach().clone() for one in last]
            found = real(state_dict, *args, **more)
            for one, before in zip(last, kept):
                one.detach().copy_(before)
            return found
        dcp.load = load
    """, when="torch.distributed.checkpoint"),
)  # fmt: skip
