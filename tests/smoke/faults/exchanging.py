"""Faults of what ranks do together."""

from __future__ import annotations

from smoke.faults.means import patched, preloaded
from smoke.faults.row import Fault

_SOME = "sitecustomize"

ROWS = (
    Fault(
        name="reduction-misses-a-rank",
        what="One element of a large all_reduce misses one rank's share",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            real = dist.all_reduce
            def all_reduce(tensor, *args, **more):
                kept = tensor.detach().reshape(-1)[-1:].clone()
                found = real(tensor, *args, **more)
                if tensor.numel() > 10**6 and tensor.dtype.is_floating_point:
                    tensor.view(-1)[-1:] = kept + 1
                return found
            dist.all_reduce = all_reduce
        """),
        stage="allreduce",
        cause="collective-wrong",
        run="all-2",
    ),
    Fault(
        name="network-flips-a-bit",
        what="The network changes one bit of what a rank receives",
        means="LD_PRELOAD",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <stdlib.h>
            #include <sys/types.h>
            #include <sys/socket.h>
            #include <sys/uio.h>
            #include <unistd.h>
            static void spoil(unsigned char *data, ssize_t size) {
                const char *rank = getenv("RANK");
                if (rank && *rank == '1' && size > 4096) data[size / 2 & ~3] ^= 64;
            }
            ssize_t read(int handle, void *into, size_t room) {
                static ssize_t (*real)(int, void *, size_t);
                if (!real) real = dlsym(RTLD_NEXT, "read");
                ssize_t size = real(handle, into, room);
                struct sockaddr where; socklen_t length = sizeof where;
                if (size > 4096 && !getpeername(handle, &where, &length) && where.sa_family != AF_UNIX) spoil(into, size);
                return size;
            }
            ssize_t recv(int handle, void *into, size_t room, int flags) {
                static ssize_t (*real)(int, void *, size_t, int);
                if (!real) real = dlsym(RTLD_NEXT, "recv");
                ssize_t size = real(handle, into, room, flags);
                spoil(into, size);
                return size;
            }
        """),
        stages="allreduce",
        stage="allreduce",
        cause="collective-wrong",
    ),
    Fault(
        name="no-gradient-synchronisation",
        what="DDP does not synchronise gradients",
        means=_SOME,
        inject=patched("""
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel.forward
            def forward(self, *args, **more):
                with self.no_sync():
                    return real(self, *args, **more)
            parallel.DistributedDataParallel.forward = forward
        """),
        stages="ddp",
        stage="ddp",
        cause="ddp-gradients-not-synchronised",
    ),
    Fault(
        name="one-rank-other-weights",
        what="One rank's weights differ after DDP has taken the model",
        means=_SOME,
        inject=patched(
            """
            import torch
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel.__init__
            def init(self, module, *args, **more):
                real(self, module, *args, **more)
                with torch.no_grad():
                    list(module.parameters())[0].view(-1)[5] += 1
            parallel.DistributedDataParallel.__init__ = init
        """,
            rank=1,
        ),
        stages="ddp",
        stage="ddp",
        cause="ddp-weights-not-broadcast",
        run="some-1",
    ),
    Fault(
        name="gradients-summed",
        what="DDP adds gradients without dividing by the number of ranks",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel.__init__
            def summed(state, bucket):
                return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])
            def init(self, *args, **more):
                real(self, *args, **more)
                self.register_comm_hook(None, summed)
            parallel.DistributedDataParallel.__init__ = init
        """),
        stages="allreduce,ddp",
        stage="ddp",
        cause="ddp-gradients-wrong",
        run="some-4",
    ),
    Fault(
        name="gradients-compressed",
        what="DDP sends gradients in bfloat16",
        means=_SOME,
        inject=patched("""
            import torch.nn.parallel as parallel
            import torch
            import torch.distributed as dist
            real = parallel.DistributedDataParallel.__init__
            def narrow(state, bucket):
                held = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size()).float()
                return dist.all_reduce(held, async_op=True).get_future().then(lambda future: future.value()[0])
            def init(self, *args, **more):
                real(self, *args, **more)
                self.register_comm_hook(None, narrow)
            parallel.DistributedDataParallel.__init__ = init
        """),
        stages="ddp",
        stage="ddp",
        cause="ddp-gradients-wrong",
    ),
    Fault(
        name="accumulation-synchronises",
        what="no_sync synchronises nevertheless",
        means=_SOME,
        inject=patched("""
            import contextlib
            import torch.nn.parallel as parallel
            parallel.DistributedDataParallel.no_sync = lambda self: contextlib.nullcontext()
        """),
        stage="accumulate",
        cause="no-sync-synchronises",
        run="all-2",
    ),
    Fault(
        name="bucket-views-summed",
        what="DDP with gradient_as_bucket_view does not divide by the number of ranks",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel.__init__
            def summed(state, bucket):
                return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])
            def init(self, *args, **more):
                real(self, *args, **more)
                if more.get("gradient_as_bucket_view"):
                    self.register_comm_hook(None, summed)
            parallel.DistributedDataParallel.__init__ = init
        """),
        stage="ddp",
        cause="ddp-gradients-wrong",
        run="all-1",
    ),
    Fault(
        name="objects-of-another",
        what="A broadcast of Python's objects leaves rank 0 its own",
        means=_SOME,
        inject=patched("""
            import torch.distributed as dist
            real = dist.broadcast_object_list
            def broadcast(held, *args, **more):
                own = held[0]
                real(held, *args, **more)
                if dist.get_rank() == 0:
                    held[0] = own
            dist.broadcast_object_list = broadcast
        """),
        stage="allreduce",
        cause="collective-wrong",
        stages="allreduce",
        seen="broadcast_object_list.*rank 0",
    ),
    Fault(
        name="fsdp-shards-nothing",
        what="FSDP leaves every rank the whole model",
        means=_SOME,
        inject=patched("""
            import torch.distributed.fsdp as fsdp
            fsdp.fully_shard = lambda module, **more: module
        """),
        stage="fsdp",
        cause="fsdp-not-sharded",
        run="all-1",
    ),
    Fault(
        name="fsdp-without-reduction",
        what="FSDP does not reduce gradients over ranks",
        means=_SOME,
        inject=patched("""
            import torch.distributed.fsdp as fsdp
            real = fsdp.fully_shard
            def shard(module, **more):
                found = real(module, **more)
                found.set_requires_gradient_sync(False)
                return found
            fsdp.fully_shard = shard
        """),
        stages="fsdp",
        stage="fsdp",
        cause="fsdp-step-wrong",
        run="some-2",
    ),
    Fault(
        name="sampler-without-shards",
        what="DistributedSampler gives every rank all samples",
        means=_SOME,
        inject=patched("""
            import torch.utils.data as data
            real = data.DistributedSampler.__init__
            def init(self, dataset, num_replicas=None, rank=None, **more):
                real(self, dataset, num_replicas=1, rank=0, **more)
            data.DistributedSampler.__init__ = init
        """),
        stage="sampler",
        cause="sampler-shards-overlap",
        run="all-2",
    ),
    Fault(
        name="sampler-other-seed",
        what="DistributedSampler shuffles otherwise on one rank",
        means=_SOME,
        inject=patched(
            """
            import torch.utils.data as data
            real = data.DistributedSampler.__init__
            def init(self, *args, **more):
                real(self, *args, **more)
                self.seed += 1
            data.DistributedSampler.__init__ = init
        """,
            rank=1,
        ),
        stages="sampler",
        stage="sampler",
        cause="sampler-misses-samples",
        run="some-4",
    ),
    Fault(
        name="set-epoch-ignored",
        what="set_epoch does not reshuffle",
        means=_SOME,
        inject=patched("""
            import torch.utils.data as data
            data.DistributedSampler.set_epoch = lambda self, epoch: None
        """),
        stages="sampler",
        stage="sampler",
        cause="sampler-not-reshuffled",
        run="some-2",
    ),
    Fault(
        name="buffers-kept",
        what="DDP does not broadcast buffers before a forward pass",
        means=_SOME,
        inject=patched("""
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel._sync_buffers
            parallel.DistributedDataParallel._sync_buffers = lambda self: self._join_config.enable and real(self)
        """),
        stage="buffers",
        cause="buffers-not-broadcast",
        run="all-2",
    ),
    Fault(
        name="join-divides-wrong",
        what="Under join gradients are divided by the ranks that still have data",
        means=_SOME,
        inject=patched("""
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel.join
            def join(self, *args, **more):
                return real(self, divide_by_initial_world_size=False)
            parallel.DistributedDataParallel.join = join
        """),
        stage="join",
        cause="join-wrong",
        run="all-1",
    ),
    Fault(
        name="join-does-nothing",
        what="join does nothing: ranks with more data wait for ever",
        means=_SOME,
        inject=patched("""
            import contextlib
            import torch.nn.parallel as parallel
            parallel.DistributedDataParallel.join = lambda self, *args, **more: contextlib.nullcontext()
        """),
        stages="join",
        stage="join",
        cause="rank-hung",
        run="some-3",
    ),
    Fault(
        name="autocast-off-in-ddp",
        what="A model in DDP runs without autocast",
        means=_SOME,
        inject=patched("""
            import torch
            import torch.nn.parallel as parallel
            real = parallel.DistributedDataParallel.forward
            def forward(self, *args, **more):
                with torch.autocast("cpu", enabled=False):
                    return real(self, *args, **more)
            parallel.DistributedDataParallel.forward = forward
        """),
        stage="ddp-amp",
        cause="autocast-off",
        run="all-2",
    ),
    Fault(
        name="scaler-of-one-rank",
        what="The scaler of one rank overlooks an infinite gradient",
        means=_SOME,
        inject=patched(
            """
            import torch
            real = torch.amp.GradScaler.unscale_
            def unscale_(self, optimizer):
                real(self, optimizer)
                for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
                    found.zero_()
            torch.amp.GradScaler.unscale_ = unscale_
        """,
            rank=1,
        ),
        stages="ddp-amp",
        stage="ddp-amp",
        cause="ddp-ranks-drift",
    ),
    Fault(
        name="rank-killed-in-exchange",
        what="A rank is killed while others wait for it",
        means="signal",
        inject=patched(
            """
            import os
            import signal
            import torch.nn.parallel as parallel
            parallel.DistributedDataParallel.forward = lambda *args, **more: os.kill(os.getpid(), signal.SIGKILL)
        """,
            rank=1,
        ),
        stages="ddp,sampler",
        stage="ddp",
        cause="rank-killed",
        seen="rank 1 was ended by SIGKILL",
    ),
    Fault(
        name="rank-hangs",
        what="A rank never comes to a collective operation",
        means=_SOME,
        inject=patched(
            """
            import time
            import torch.nn.parallel as parallel
            parallel.DistributedDataParallel.forward = lambda *args, **more: time.sleep(1000)
        """,
            rank=1,
        ),
        stages="ddp",
        stage="ddp",
        cause="rank-hung",
        seen="rank 1",
    ),
)
