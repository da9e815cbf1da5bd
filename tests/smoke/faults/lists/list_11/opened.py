"""The half that was opened after its first result."""

from __future__ import annotations

from smoke.faults.means import limited, preloaded
from smoke.faults.row import Fault
from smoke.faults.short import row

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
_FIFTH_LATE = """
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <sys/socket.h>
    #include <sys/types.h>
    #include <sys/uio.h>
    #include <unistd.h>
    static int late(int file) {
        static int calls;
        const char *rank = getenv("RANK");
        struct sockaddr_storage where; socklen_t length = sizeof where;
        if (rank && *rank == '1' && !getpeername(file, (struct sockaddr *)&where, &length) && where.ss_family != AF_UNIX
            && __sync_add_and_fetch(&calls, 1) % 5 == 0) usleep(20000);
        return 0;
    }
    ssize_t send(int file, const void *from, size_t size, int flags) {
        static ssize_t (*real)(int, const void *, size_t, int);
        if (!real) real = dlsym(RTLD_NEXT, "send");
        late(file);
        return real(file, from, size, flags);
    }
    ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
        static ssize_t (*real)(int, const struct msghdr *, int);
        if (!real) real = dlsym(RTLD_NEXT, "sendmsg");
        late(file);
        return real(file, message, flags);
    }
    ssize_t writev(int file, const struct iovec *parts, int count) {
        static ssize_t (*real)(int, const struct iovec *, int);
        if (!real) real = dlsym(RTLD_NEXT, "writev");
        late(file);
        return real(file, parts, count);
    }
"""

ROWS: tuple[Fault, ...] = (
    row("fp16-hook-sums", "The hook that sends gradients in float16 does not divide them", "ddp", "ddp-gradients-wrong", """
        import sys
        import torch
        hooks = sys.modules["torch.distributed.algorithms.ddp_comm_hooks.default_hooks"]
        def fp16_compress_hook(group, bucket):
            work = torch.distributed.all_reduce(bucket.buffer().half(), async_op=True)
            return work.get_future().then(lambda future: bucket.buffer().copy_(future.value()[0]))
        hooks.fp16_compress_hook = fp16_compress_hook
    """, when=_HOOKS, seen="fp16_compress_hook"),
    row("hook-leaves-own", "The hook that adds gradients leaves one rank its own", "ddp", "ddp-gradients-wrong", """
        import sys
        import torch
        hooks = sys.modules["torch.distributed.algorithms.ddp_comm_hooks.default_hooks"]
        real = hooks.allreduce_hook
        def allreduce_hook(group, bucket):
            own = bucket.buffer().clone()
            return real(group, bucket).then(lambda future: own)
        hooks.allreduce_hook = allreduce_hook
    """, rank=1, when=_HOOKS, seen="allreduce_hook.*rank 1"),
    row("zero-not-sent", "ZeroRedundancyOptimizer does not send the others what each rank has stepped", "ddp", "zero-step-wrong", """
        import torch.distributed.optim as optim
        optim.ZeroRedundancyOptimizer._sync_params = lambda self: None
    """, when="torch.distributed.optim"),
    row("fsdp-reduces-low", "FSDP adds gradients in bfloat16 where float32 is asked for", "fsdp", "fsdp-step-wrong", """
        import torch
        import torch.distributed.fsdp as fsdp
        real = fsdp.MixedPrecisionPolicy.__init__
        def made(self, *args, **more):
            real(self, *args, **more)
            if self.reduce_dtype == torch.float32:
                object.__setattr__(self, "reduce_dtype", torch.bfloat16)
        fsdp.MixedPrecisionPolicy.__init__ = made
    """, when="torch.distributed.fsdp", seen="mixed precision"),
    row("hsdp-replicas-apart", "FSDP over two dimensions does not add gradients over replicas", "fsdp", "fsdp-step-wrong", """
        import sys
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(*args, **more):
            if "fsdp" in sys._getframe(1).f_code.co_filename:
                return None
            return real(*args, **more)
        dist.all_reduce = all_reduce
    """, when="torch.distributed", seen="replica"),
    row("dtensor-turned", "A DTensor is put together in the wrong order", "fsdp", "dtensor-wrong", """
        import torch.distributed.tensor as tensor
        real = tensor.DTensor.full_tensor
        def full_tensor(self, *args, **more):
            found = real(self, *args, **more)
            return found.flip(0) if found.dim() else found
        tensor.DTensor.full_tensor = full_tensor
    """, when="torch.distributed.tensor"),
    row("vmap-first-only", "vmap gives all of a batch the answer of its first", "layers", "function-transform-wrong", """
        import torch
        real = torch.func.vmap
        def vmap(*args, **more):
            made = real(*args, **more)
            def answered(*given, **options):
                found = made(*given, **options)
                return found[:1].expand_as(found).clone() if isinstance(found, torch.Tensor) else found
            return answered
        torch.vmap = torch.func.vmap = vmap
    """, seen="vmap"),
    row("jvp-doubled", "jvp gives a directional derivative twice its size", "layers", "function-transform-wrong", """
        import torch
        real = torch.func.jvp
        def jvp(*args, **more):
            value, slope = real(*args, **more)[:2]
            return value, slope * 2
        torch.func.jvp = jvp
    """, seen="jvp"),
    row("assign-ignored", "load_state_dict(assign=True) copies into the tensors that are there", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.nn.Module.load_state_dict
        def load_state_dict(self, held, strict=True, assign=False):
            return real(self, held, strict)
        torch.nn.Module.load_state_dict = load_state_dict
    """, seen="assign"),
    row("in-memory-rounded", "torch.save into memory (BytesIO) rounds floating-point numbers to bfloat16", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.save
        def rounded(held):
            if isinstance(held, dict):
                return {key: rounded(value) for key, value in held.items()}
            if isinstance(held, torch.Tensor) and held.dtype == torch.float32:
                return held.bfloat16().float()
            return held
        def save(held, where, *args, **more):
            return real(rounded(held) if hasattr(where, "getbuffer") else held, where, *args, **more)
        torch.save = save
    """, seen="memory"),
    row("gives-one-more", "One rank adds 1 to its first element before each all_reduce", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(held, *args, **more):
            if held.is_floating_point() and held.numel() > 1:
                held.view(-1)[0] += 1
            return real(held, *args, **more)
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1 gives"),
    row("scatters-wrong", "One rank's last element is another before each reduce_scatter", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        def changed(real):
            def reduce_scatter(output, given, *args, **more):
                given = given.clone()
                given.view(-1)[-1] += 1
                return real(output, given, *args, **more)
            return reduce_scatter
        for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
            if hasattr(dist, name):
                setattr(dist, name, changed(getattr(dist, name)))
    """, rank=0, when="torch.distributed", seen="rank 0 gives"),
    row("sends-a-bit-wrong", "The network changes one bit of what a rank sends", "allreduce", "collective-wrong",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <stdlib.h>
            #include <string.h>
            #include <sys/types.h>
            #include <sys/socket.h>
            #include <sys/uio.h>
            static char *spoiled(int file, const void *from, size_t size) {
                const char *rank = getenv("RANK");
                struct sockaddr_storage where; socklen_t length = sizeof where;
                if (!rank || *rank != '1' || size <= 4096 || getpeername(file, (struct sockaddr *)&where, &length)
                    || where.ss_family == AF_UNIX) return 0;
                char *held = malloc(size);
                memcpy(held, from, size);
                held[size / 2 & ~3] ^= 64;
                return held;
            }
            ssize_t send(int file, const void *from, size_t size, int flags) {
                static ssize_t (*real)(int, const void *, size_t, int);
                if (!real) real = dlsym(RTLD_NEXT, "send");
                char *held = spoiled(file, from, size);
                ssize_t sent = real(file, held ? held : from, size, flags);
                free(held);
                return sent;
            }
            ssize_t writev(int file, const struct iovec *parts, int count) {
                static ssize_t (*real)(int, const struct iovec *, int);
                if (!real) real = dlsym(RTLD_NEXT, "writev");
                struct iovec own[16];
                char *held = 0;
                if (count < 16) {
                    memcpy(own, parts, count * sizeof *parts);
                    for (int i = 0; i < count && !held; i++)
                        if ((held = spoiled(file, parts[i].iov_base, parts[i].iov_len))) own[i].iov_base = held;
                }
                ssize_t sent = real(file, held ? own : parts, count);
                free(held);
                return sent;
            }
        """), means="LD_PRELOAD", seen="rank 1 sends"),
    row("worker-spoils", "One of two workers of rank 1 changes a word of a sample", "dataloader", "dataloader-corrupts", """
        import torch.utils.data._utils.fetch as fetch
        real = fetch._MapDatasetFetcher.fetch
        def wrong(self, wanted):
            found = real(self, wanted)
            info = fetch.__dict__.get("_info") or __import__("torch").utils.data.get_worker_info()
            if info and info.id == 1 and isinstance(found, dict) and "content" in found and found["content"].dim() > 1:
                found["content"][0, 7] += 1
            return found
        fetch._MapDatasetFetcher.fetch = wrong
    """, rank=1, when="torch.utils.data", seen="worker 1.*rank 1"),
    row("every-fifth-send-late", "Each fifth message of one rank is 20 ms late", "allreduce", "collective-slow",
        inject=preloaded(_FIFTH_LATE), means="LD_PRELOAD", seen="rank 1"),
    row("nofile-48", "ulimit -n 48: 48 open files", "dataloader", "nofile-limit-too-low",
        inject=limited("--nofile=48:48"), means="rlimit", stages="dataloader,rendezvous,allreduce,ddp"),
    row("reduce-scatter-doubled", "reduce_scatter gives twice of what it should", "fsdp", "collective-wrong", """
        import torch.distributed as dist
        def changed(real):
            def reduce_scatter(output, *args, **more):
                found = real(output, *args, **more)
                if found is None:
                    output.mul_(2)
                return found
            return reduce_scatter
        for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
            if hasattr(dist, name):
                setattr(dist, name, changed(getattr(dist, name)))
    """, when="torch.distributed"),
)  # fmt: skip
