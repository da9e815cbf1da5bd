"""Twelve faults that stay sealed until the rest is built: only their first result counts."""

from __future__ import annotations

import signal

from smoke.faults.means import all_of, from_path, loading, preloaded, signalled, unshared, variables
from smoke.faults.short import row

ROWS = (
    row("groups-of-one-rate", "An optimizer takes the first group's learning rate for all groups", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.Optimizer.add_param_group
        def add(self, group):
            real(self, group)
            self.param_groups[-1]["lr"] = self.param_groups[0]["lr"]
        torch.optim.Optimizer.add_param_group = add
    """, seen="(?i)group"),
    row("multinomial-uniform", "torch.multinomial draws all alike, whatever the weights", "device", "random-numbers-wrong", """
        import torch
        def alike(real):
            return lambda weights, *args, **more: real(torch.ones_like(weights), *args, **more)
        torch.multinomial, torch.Tensor.multinomial = alike(torch.multinomial), alike(torch.Tensor.multinomial)
    """, seen="multinomial"),
    row("autocast-off-after-nested", "Autocast stays off after a block within it that switched it off", "amp-bf16", "autocast-off", """
        import torch
        real = torch.autocast.__exit__
        def leave(self, *args):
            done = real(self, *args)
            if not self._enabled:
                torch.set_autocast_enabled(self.device, False)
            return done
        torch.autocast.__exit__ = leave
    """),
    row("tracer-on-one-rank", "A tracer (coverage, a debugger) follows each line of one rank", "device", "torch-setting-changed", """
        import sys
        def trace(frame, event, given):
            return trace
        sys.settrace(trace)
    """, rank=1, seen="rank 1.*tracer"),
    row("fsync-fails", "The disk for checkpoints takes what is written, and then fails to keep it (EIO)", "checkpoint",
        "storage-io-error", inject=preloaded("""
        #include <errno.h>
        int fsync(int handle) {
            errno = EIO;
            return -1;
        }
    """), means="LD_PRELOAD"),
    row("profiler-left-on", "A plug-in leaves torch's profiler running", "device", "torch-setting-changed", """
        import torch
        kept = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        kept.start()
        torch.kept_by_a_plug_in = kept
    """, seen="(?i)profil"),
    row("shm-full-of-others", "Segments that killed jobs left fill /dev/shm", "dataloader", "dev-shm-too-small", inject=unshared(
        "--mount", "mount -t tmpfs -o size=64m tmpfs /dev/shm\nhead -c 67000000 /dev/zero > /dev/shm/torch_4711_815_0"),
        means="namespace"),
    row("compile-disk-small", "The disk for compiled code has 1 MB", "compile", "disk-full-or-quota", inject=all_of(
        unshared("--mount", "mkdir {folder}/cache\nmount -t tmpfs -o size=1m,mode=755 tmpfs {folder}/cache"),
        variables(TORCHINDUCTOR_CACHE_DIR="{folder}/cache")), means="namespace"),
    row("no-linker", "The compiler finds no linker (binutils is not installed)", "compile", "build-tool-missing",
        inject=from_path("ld", "ld.bfd", "ld.gold", "as"), means="environment"),
    row("rank-interrupted", "One rank gets SIGINT", "dataloader", "rank-killed", inject=signalled(signal.SIGINT, loading(1)),
        means="signal", seen="rank 1"),
    row("bfloat16-loaded-off", "What is bfloat16 in a checkpoint loses its last bits when it is loaded", "checkpoint",
        "checkpoint-damaged", """
        import torch
        def spoiled(held):
            if isinstance(held, dict):
                return type(held)((key, spoiled(value)) for key, value in held.items())
            if isinstance(held, (list, tuple)):
                return type(held)(map(spoiled, held))
            if isinstance(held, torch.Tensor) and held.dtype == torch.bfloat16:
                return (held.view(torch.int16) & -4).view(torch.bfloat16)
            return held
        real = torch.load
        torch.load = lambda *args, **more: spoiled(real(*args, **more))
    """),
    row("waits-too-short", "wait() of an asynchronous all_reduce returns before it is done", "allreduce", "collective-wrong", """
        import threading
        import time
        import torch.distributed as dist
        real = dist.all_reduce
        class Early:
            def wait(self, *args):
                return True
            def is_completed(self):
                return True
        def all_reduce(tensor, *args, **more):
            if not more.get("async_op"):
                return real(tensor, *args, **more)
            held = tensor.clone()
            work = real(held, *args, **more)
            def later():
                work.wait()
                time.sleep(0.2)
                tensor.copy_(held)
            threading.Thread(target=later, daemon=True).start()
            return Early()
        dist.all_reduce = all_reduce
    """, when="torch.distributed"),
)  # fmt: skip
