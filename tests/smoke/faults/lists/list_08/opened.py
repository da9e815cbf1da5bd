"""What was not named at first of twenty faults that somebody else had written."""

from __future__ import annotations

from smoke.faults.short import row

ROWS = (
    row("variables-differ", "One rank runs with TORCH_DISTRIBUTED_DEBUG=DETAIL, which wraps each exchange in others", "rendezvous", "ranks-unlike", """
        import os
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    """, rank=1, seen="TORCH_DISTRIBUTED_DEBUG"),
    row("clock-off", "One rank is told a time 200 s ahead", "device", "clock-skew", """
        import time
        real = time.time
        time.time = lambda: real() + 200
    """, rank=1, seen="200 s"),
    row("handler-at-end-hangs", "One rank hangs in a handler of atexit, after all work is done", "rendezvous", "rank-does-not-end", """
        import atexit, time
        atexit.register(time.sleep, 1e6)
    """, rank=0, seen="rank 0", stages="", run="all-2"),
    row("crashes-at-end", "One rank aborts when it ends, after all work is done", "rendezvous", "rank-crashed", """
        import atexit, os
        atexit.register(os.abort)
    """, rank=1, seen="rank 1 was ended by SIGABRT"),
    row("integer-buffers-stay", "DDP broadcasts no buffers of whole numbers (num_batches_tracked)", "buffers", "buffers-not-broadcast", """
        import torch.distributed as dist
        real = dist._broadcast_coalesced
        def broadcast(group, tensors, size, source=0):
            return real(group, [one for one in tensors if one.is_floating_point()], size, source)
        dist._broadcast_coalesced = broadcast
    """, stages="ddp,buffers", when="torch.distributed", seen="int64"),
    row("schedule-restarts", "A schedule that is loaded begins anew", "checkpoint", "resume-differs", """
        import torch.optim.lr_scheduler as schedules
        real = schedules.LRScheduler.load_state_dict
        def load(self, held):
            return real(self, {name: value for name, value in held.items() if name != "last_epoch"})
        schedules.LRScheduler.load_state_dict = load
    """, seen="schedule.last_epoch"),
    row("steps-restart", "Loading an optimizer sets Adam's count of steps to 0", "checkpoint", "resume-differs", """
        import torch
        real = torch.optim.Optimizer.load_state_dict
        def load(self, held):
            real(self, held)
            for one in self.state.values():
                if "step" in one:
                    one["step"] = one["step"] * 0
        torch.optim.Optimizer.load_state_dict = load
    """, seen=r"optimizer\.state.*step"),
)  # fmt: skip
