"""Twelve faults that stay sealed until the rest is built: only their first result counts."""

from __future__ import annotations

from smoke.faults.means import preloaded
from smoke.faults.short import row

ROWS = (
    row("lstm-backwards", "An LSTM reads its sequence from the end", "layers", "layer-wrong", """
        import torch
        real = torch.nn.LSTM.forward
        def forward(self, given, state=None):
            return real(self, given.flip(1 if self.batch_first else 0), state)
        torch.nn.LSTM.forward = forward
    """, seen="LSTM"),
    row("blocking-recv-stale", "recv gives what the message before it held", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real, before = dist.recv, {}
        def recv(tensor, *args, **more):
            found = real(tensor, *args, **more)
            now = tensor.clone()
            if tensor.shape in before:
                tensor.copy_(before[tensor.shape])
            before[tensor.shape] = now
            return found
        dist.recv = recv
    """, when="torch.distributed", seen="recv"),
    row("embedding-bag-mean-sums", "embedding_bag adds up where it is to take the mean", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.embedding_bag
        def bag(given, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean", *args, **more):
            return real(given, weight, offsets, max_norm, norm_type, scale_grad_by_freq, "sum" if mode == "mean" else mode, *args, **more)
        torch.nn.functional.embedding_bag = bag
    """, seen="(?i)embedding_?bag"),
    row("sigterm-blocked", "Ranks begin with SIGTERM blocked: what saves a checkpoint before a preemption never runs", "device",
        "signals-blocked", """
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    """, seen="SIGTERM"),
    row("foreach-leaves-last", "foreach operations leave out the last of more than eight tensors", "optimizer", "optimizer-wrong", """
        import torch
        real = torch._foreach_add_
        def add(given, *args, **more):
            if len(given) > 8:
                args = tuple(one[:-1] if isinstance(one, (list, tuple)) else one for one in args)
                given = given[:-1]
            return real(given, *args, **more)
        torch._foreach_add_ = add
    """),
    row("rank-slow-files", "One rank's disk is slow: 20 ms for each write, 0.2 s for each fsync", "stragglers", "straggler-storage",
        inject=preloaded("""
        #include <dlfcn.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/stat.h>
        #include <unistd.h>
        static int slow(int handle) {
            struct stat held;
            const char *rank = getenv("RANK");
            return rank && !strcmp(rank, "1") && !fstat(handle, &held) && S_ISREG(held.st_mode);
        }
        ssize_t write(int handle, const void *from, size_t size) {
            ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
            if (size >= 4096 && slow(handle)) usleep(20000);
            return real(handle, from, size);
        }
        int fsync(int handle) {
            int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
            if (slow(handle)) usleep(200000);
            return real(handle);
        }
    """), means="LD_PRELOAD", seen="rank 1", stages=""),
    row("rank-sleeps-in-step", "One rank waits 30 ms in each step of its optimizer", "stragglers", "straggler-held-back", """
        import time
        import torch
        for kind in (torch.optim.SGD, torch.optim.AdamW):
            def step(self, *args, real=kind.step, **more):
                time.sleep(0.03)
                return real(self, *args, **more)
            kind.step = step
    """, rank=1, seen="rank 1", stages=""),
    row("buffers-not-restored", "load_state_dict leaves buffers (running means) as they were", "checkpoint", "resume-differs", """
        import torch
        real = torch.nn.Module._load_from_state_dict
        def load(self, *args, **more):
            kept = {name: one.clone() for name, one in self._buffers.items() if one is not None}
            real(self, *args, **more)
            with torch.no_grad():
                for name, one in kept.items():
                    self._buffers[name].copy_(one)
        torch.nn.Module._load_from_state_dict = load
    """),
    row("gradient-hooks-ignored", "Hooks on gradients do not run", "layers", "autograd-wrong", """
        import torch
        class Handle:
            def remove(self):
                pass
        torch.Tensor.register_hook = lambda self, hook: Handle()
    """, seen="hook"),
    row("stdout-closed", "Ranks begin with standard output closed: the next file that is opened gets what is printed", "device",
        "stdout-closed", """
        import os
        os.close(1)
    """),
    row("randn-repeats", "The second half of what torch.randn draws is the first once more", "device", "random-numbers-wrong", """
        import torch
        real = torch.randn
        def randn(*args, **more):
            found = real(*args, **more)
            flat, half = found.detach().view(-1), found.numel() // 2
            if half > 32:
                flat[half : 2 * half] = flat[:half].clone()
            return found
        torch.randn = randn
    """, seen="randn"),
    row("bitwise-or-adds", "all_reduce (BOR) adds", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, op=dist.ReduceOp.SUM, *args, **more):
            return real(tensor, dist.ReduceOp.SUM if op == dist.ReduceOp.BOR else op, *args, **more)
        dist.all_reduce = all_reduce
    """, when="torch.distributed", seen="BOR"),
)  # fmt: skip
