"""The eight that stay closed until the end: only their first result counts."""

from __future__ import annotations

import signal

from smoke.faults.means import all_of, loading, patched, preloaded, signalled, unshared
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("memcpy-flips", "One in 60 of one rank's copies of 64 kB and more (memcpy) has a wrong bit", "stress", "silent-data-corruption", means="LD_PRELOAD", seen="rank 1",
        stages="device,gemm,memory,copy,stress,layers", inject=preloaded("""
            #include <stdlib.h>
            #include <string.h>
            #include <stddef.h>
            static int wrong = -1;
            static unsigned calls;
            void *memcpy(void *to, const void *from, size_t size) {
                memmove(to, from, size);
                if (size >= 65536) {
                    if (wrong < 0) {
                        const char *rank = getenv("RANK");
                        wrong = rank && rank[0] == '1' && !rank[1];
                    }
                    if (wrong && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 60 == 0)
                        ((unsigned char *)to)[size / 2 + 1] ^= 4;
                }
                return to;
            }
        """)),
    row("few-files-on-one", "ulimit -n 40 on one rank alone (a container's own limit)", "dataloader", "nofile-limit-too-low", """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    """, rank=1, seen="rank 1", stages="device,dataloader", means="rlimit"),
    row("warned-by-the-scheduler", "A scheduler's warning (SIGUSR1) ends one rank, which has no handler for it", "dataloader", "rank-killed", means="signal", seen="rank 1",
        stages="device,dataloader", inject=all_of(patched("""
            import time
            from torch.utils.data import DataLoader
            real = DataLoader.__iter__
            def slow(self):
                for batch in real(self):
                    time.sleep(0.2)
                    yield batch
            DataLoader.__iter__ = slow
        """), signalled(signal.SIGUSR1, loading(1)))),
    row("way-back-slower", "The way back (backward) takes one rank 1.3 times as long", "stragglers", "straggler-compute", """
        import time
        import torch
        real = torch.autograd.backward
        def backward(*args, **more):
            began = time.perf_counter()
            found = real(*args, **more)
            until = began + 1.3 * (time.perf_counter() - began)
            while time.perf_counter() < until:
                pass
            return found
        torch.autograd.backward = backward
    """, rank=1, seen="rank 1"),
    row("second-loss-not-scaled", "GradScaler.scale of several losses scales the first alone", "amp-fp16", "scaler-scale-wrong", """
        import torch
        real = torch.amp.GradScaler.scale
        def scale(self, outputs):
            if isinstance(outputs, torch.Tensor):
                return real(self, outputs)
            held = list(outputs)
            return type(outputs)([real(self, held[0]), *held[1:]])
        torch.amp.GradScaler.scale = scale
    """),
    row("weights-of-samples-ignored", "WeightedRandomSampler draws all samples alike, whatever their weights", "dataloader", "sampler-weights-ignored", """
        import torch
        from torch.utils.data import sampler
        real = sampler.WeightedRandomSampler.__init__
        def init(self, weights, *args, **more):
            real(self, [1.0] * len(weights), *args, **more)
        sampler.WeightedRandomSampler.__init__ = init
    """, when="torch.utils.data"),
    row("second-derivative-lost", "The gradient of a gradient (create_graph=True, gradient penalties) leaves out what goes through the first", "layers", "autograd-wrong", """
        import torch
        real = torch.autograd.grad
        def grad(*args, **more):
            found = real(*args, **more)
            if more.get("create_graph"):
                return tuple(one if one is None else one * 0.5 + one.detach() * 0.5 for one in found)
            return found
        torch.autograd.grad = grad
    """),
    row("shm-read-only", "/dev/shm can be read only", "dataloader", "dev-shm-too-small", means="namespace", stages="device,dataloader",
        inject=unshared("-m --propagation private", "mount -t tmpfs -o ro,size=64m tmpfs /dev/shm")),
)  # fmt: skip
