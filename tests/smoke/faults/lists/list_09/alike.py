"""What stayed open of the eighth list, and others of its kinds."""

from __future__ import annotations

from smoke.faults.means import all_of, preloaded, unshared, variables
from smoke.faults.short import row

_THREADS = """
    #include <dlfcn.h>
    #include <pthread.h>
    #include <stdlib.h>
    #include <xmmintrin.h>
    struct work { void *(*begin)(void *); void *given; };
    static void *begins(void *held) {
        struct work work = *(struct work *)held;
        free(held);
        _mm_setcsr(_mm_getcsr() | %s);
        return work.begin(work.given);
    }
    int pthread_create(pthread_t *thread, const pthread_attr_t *with, void *(*begin)(void *), void *given) {
        int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
        struct work *work = malloc(sizeof *work);
        work->begin = begin;
        work->given = given;
        return real(thread, with, begins, work);
    }
"""
_SELDOM = """
    import torch
    real, calls = torch.nn.functional.%s, [0]
    def seldom(*args, **more):
        found = real(*args, **more)
        calls[0] += 1
        if calls[0] %% %d == 0:
            %s
        return found
    torch.nn.functional.%s = seldom
"""


_CLOCK = """
    import time
    import torch.distributed as dist
    real, meet = time.time, dist.init_process_group
    def met(*args, **more):
        found = meet(*args, **more)
        time.time = lambda: real() %s
        return found
    dist.init_process_group = met
"""
_LEFT_OUT = """
    import torch.nn.parallel.distributed as parallel
    real = parallel.DistributedDataParallel.__init__
    def init(self, module, *args, **more):
        names = [name for name, _ in module.named_parameters()]
        left = {name for name in %s}
        if len(names) > len(left):
            module._ddp_params_and_buffers_to_ignore = left
        real(self, module, *args, **more)
    parallel.DistributedDataParallel.__init__ = init
"""


def _seldom(function: str, often: int, spoil: str) -> str:
    return _SELDOM % (function, often, spoil, function)


ROWS = (
    row("threads-flush", "A library makes each new thread take denormal numbers for zero", "device", "float-environment-changed",
        inject=preloaded(_THREADS % "0x8040"), means="LD_PRELOAD", seen="denormal numbers.*threads"),
    row("threads-round-up", "A library makes each new thread round up", "device", "float-environment-changed",
        inject=preloaded(_THREADS % "0x4000"), means="LD_PRELOAD", seen="nearest.*threads"),
    row("python-threads-flush", "A plug-in lets each thread that Python starts take denormal numbers for zero", "device", "float-environment-changed", """
        import threading
        import torch
        real = threading.Thread.run
        def run(self):
            torch.set_flush_denormal(True)
            return real(self)
        threading.Thread.run = run
    """, seen="denormal numbers.*threads"),
    row("memory-returned", "The C library maps each piece of memory above 4 kB by itself (MALLOC_MMAP_THRESHOLD_)", "device", "memory-returned-at-once",
        inject=variables(MALLOC_MMAP_THRESHOLD_="4096"), means="environment", seen="page faults"),
    row("memory-trimmed", "Each free gives what it can back to the kernel", "device", "memory-returned-at-once", inject=preloaded("""
        #include <dlfcn.h>
        #include <malloc.h>
        static __thread int within;
        void free(void *held) {
            static void (*real)(void *);
            if (!real) real = dlsym(RTLD_NEXT, "free");
            size_t size = held ? malloc_usable_size(held) : 0;
            real(held);
            if (size > 65536 && !within) { within = 1; malloc_trim(0); within = 0; }
        }
    """), means="LD_PRELOAD", seen="page faults"),
    row("layernorm-seldom", "Every 30th gradient of LayerNorm is wrong on one rank", "stress", "silent-data-corruption",
        _seldom("layer_norm", 30, "found.requires_grad and found.register_hook(lambda slope: slope * 1.01)"), rank=1, seen="rank 1.*LayerNorm"),
    row("embedding-seldom", "Every 25th look-up of an embedding is another word's on one rank", "stress", "silent-data-corruption",
        _seldom("embedding", 25, "found = found.roll(1, 0)"), rank=0, seen="rank 0.*Embedding"),
    row("loss-seldom", "Every 20th loss of one rank has half of its gradient", "stress", "silent-data-corruption",
        _seldom("cross_entropy", 20, "found = found / 2 + found.detach() / 2"), rank=1, seen="rank 1.*gradient of"),
    row("adamw-seldom", "Every 15th step of AdamW on one rank leaves out a parameter", "stress", "silent-data-corruption", """
        import torch
        real, calls = torch.optim.AdamW.step, [0]
        def step(self, *args, **more):
            calls[0] += 1
            left = self.param_groups[0]["params"][3] if calls[0] % 15 == 0 else None
            kept = left.detach().clone() if left is not None else None
            found = real(self, *args, **more)
            if left is not None:
                left.data.copy_(kept)
            return found
        torch.optim.AdamW.step = step
    """, rank=0, seen="rank 0.*AdamW"),
    row("workers-no-inodes", "/dev/shm has room for workers' samples, but for no more files", "dataloader", "dev-shm-too-small",
        inject=unshared("--mount", "mount -t tmpfs -o nr_inodes=3 tmpfs /dev/shm"), means="namespace", seen="No space left"),
    row("workers-few-inodes", "/dev/shm has files left for workers' semaphores, but not for their samples", "dataloader", "dev-shm-too-small",
        inject=unshared("--mount", "mount -t tmpfs -o nr_inodes=16 tmpfs /dev/shm"), means="namespace", seen="No space left"),
    row("tmpdir-few-inodes", "The directory for temporary files takes no more files once workers run", "dataloader", "disk-full-or-quota", inject=all_of(
        unshared("--mount", "mkdir {folder}/disk\nmount -t tmpfs -o nr_inodes=8,mode=1777 tmpfs {folder}/disk"), variables(TMPDIR="{folder}/disk")),
        means="namespace", seen="No space left"),
    row("ddp-leaves-the-first-out", "DDP leaves a model's first parameter out: it is neither sent at first nor averaged", "ddp", "ddp-gradients-not-synchronised",
        _LEFT_OUT % "names[:1]", when="torch.nn.parallel.distributed", seen="leaves out"),
    row("ddp-leaves-biases-out", "DDP leaves all biases out", "ddp", "ddp-gradients-not-synchronised",
        _LEFT_OUT % 'names if "bias" in name', when="torch.nn.parallel.distributed", seen="leaves out.*bias"),
    row("epoch-ignored-by-one", "DistributedSampler.set_epoch does nothing on rank 0", "sampler", "sampler-not-reshuffled", """
        import torch.utils.data.distributed as sampling
        sampling.DistributedSampler.set_epoch = lambda self, epoch: None
    """, rank=0, when="torch.utils.data.distributed", seen="rank 0"),
    row("epoch-forgotten-by-one", "Each set_epoch gives rank 1 an epoch of its own", "sampler", "sampler-not-repeatable", """
        import itertools
        import torch.utils.data.distributed as sampling
        calls = itertools.count()
        sampling.DistributedSampler.set_epoch = lambda self, epoch: setattr(self, "epoch", next(calls))
    """, rank=1, when="torch.utils.data.distributed", seen="rank 1"),
    row("steps-wait-long", "One rank waits 80 ms in each step of its optimizer", "stragglers", "straggler-held-back", """
        import time
        import torch.optim.optimizer as base
        base.register_optimizer_step_post_hook(lambda *given: time.sleep(0.08))
    """, rank=0, when="torch.optim.optimizer", seen="rank 0"),
    row("products-two-hundred-times", "Products take one rank 20 ms more", "stragglers", "straggler-compute", """
        import time
        import torch
        real = torch.mm
        def slow(*args, **more):
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
            return real(*args, **more)
        torch.mm = slow
    """, rank=1, seen="rank 1"),
    row("batches-wait-long", "Putting a batch together takes one rank 0.2 s", "stragglers", "straggler-loading", """
        import time
        from torch.utils.data import _utils
        real = _utils.fetch._MapDatasetFetcher.fetch
        def fetch(self, places):
            time.sleep(0.2)
            return real(self, places)
        _utils.fetch._MapDatasetFetcher.fetch = fetch
    """, rank=1, seen="rank 1"),
    row("no-ipv4-loopback", "The loopback has no IPv4 address, IPv6 works", "rendezvous", "loopback-down",
        inject=unshared("--net", "ip link set lo up\nip addr del 127.0.0.1/8 dev lo"), means="namespace", seen="no IPv4 address"),
    row("clock-set-back", "The clock of one rank is set back by an hour after the ranks have met", "stragglers", "clock-jumps",
        _CLOCK % "- 3600", rank=1, when="torch.distributed", seen="rank 1:.*-3600 s"),
    row("clock-set-ahead", "The clock of one rank is set 100 s ahead after the ranks have met", "stragglers", "clock-jumps",
        _CLOCK % "+ 100", rank=0, when="torch.distributed", seen="rank 0:.*100 s"),
    row("thread-left-by-training", "The first step of an optimizer leaves a thread that never ends on one rank", "rendezvous", "rank-does-not-end", """
        import threading
        import torch.optim.optimizer as base
        started = []
        def then(*given):
            if not started:
                started.append(threading.Thread(target=threading.Event().wait, name="leftover"))
                started[0].start()
        base.register_optimizer_step_post_hook(then)
    """, rank=1, when="torch.optim.optimizer", stages="optimizer,rendezvous", seen="rank 1.*leftover"),
)  # fmt: skip
