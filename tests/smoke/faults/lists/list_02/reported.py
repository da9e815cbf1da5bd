"""Faults that reports from outside named: not noticed, or named vaguely or wrongly."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from smoke.faults.bench import Bench
from smoke.faults.means import in_front, loading, preloaded, signalled, unshared
from smoke.faults.short import every_nth, row, slowed

_DELAYED = """
    #include <dlfcn.h>
    #include <stdlib.h>
    #include <sys/types.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <unistd.h>
    static void wait_a_little(int handle) {
        const char *rank = getenv("RANK");
        struct sockaddr where; socklen_t length = sizeof where;
        if (rank && *rank == '1' && !getpeername(handle, &where, &length) && where.sa_family != AF_UNIX) usleep(25000);
    }
    ssize_t read(int handle, void *into, size_t room) {
        static ssize_t (*real)(int, void *, size_t);
        if (!real) real = dlsym(RTLD_NEXT, "read");
        wait_a_little(handle);
        return real(handle, into, room);
    }
    ssize_t recv(int handle, void *into, size_t room, int flags) {
        static ssize_t (*real)(int, void *, size_t, int);
        if (!real) real = dlsym(RTLD_NEXT, "recv");
        wait_a_little(handle);
        return real(handle, into, room, flags);
    }
"""


def _launcher(bench: Bench) -> int | None:
    """The process that started rank 0, once that has started workers of a DataLoader."""
    pid = loading(0)(bench)
    if pid is None:
        return None
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _poisoned_cache(bench: Bench) -> None:
    """What a full disk or a killed job leaves: a compiled file that ends in the middle."""
    place = bench.folder / "cache" / "ab"
    place.mkdir(parents=True)
    whole = Path("/proc/self/exe").read_bytes()
    (place / "cabcdefghijklmnop.so").write_bytes(whole[: len(whole) // 2])
    os.utime(place / "cabcdefghijklmnop.so", (1e9, 1e9))
    bench.env["TORCHINDUCTOR_CACHE_DIR"] = str(bench.folder / "cache")


def _slow_compiler(bench: Bench) -> None:
    in_front(bench, "slow/c++", '#!/bin/sh\nsleep 25\nexec /usr/bin/c++ "$@"\n')
    place = bench.folder / "front" / "slow" / "c++"
    place.chmod(0o755)
    bench.env["CXX"] = str(place)


_LARGE_PACKETS_LOST = unshared("-n -m", "ip link set lo up; iptables -A INPUT -i lo -p tcp -m length --length 1500:65535 -j DROP")


ROWS = (
    row("reduce-misses-a-rank", "reduce leaves the root without another rank's share", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.reduce
        def reduce(tensor, *args, **more):
            kept = tensor.clone()
            found = real(tensor, *args, **more)
            tensor.copy_(kept)
            return found
        dist.reduce = reduce
    """, seen="reduce"),
    row("gather-other-order", "gather gives the root the values of the ranks in another order", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.gather
        def gather(tensor, gather_list=None, *args, **more):
            found = real(tensor, gather_list[::-1] if gather_list else gather_list, *args, **more)
            return found
        dist.gather = gather
    """, seen="gather"),
    row("scatter-wrong-part", "scatter gives a rank the part of another", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.scatter
        def scatter(tensor, scatter_list=None, *args, **more):
            return real(tensor, scatter_list[::-1] if scatter_list else scatter_list, *args, **more)
        dist.scatter = scatter
    """, seen="scatter"),
    row("product-adds", "all_reduce adds where a product was asked for", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, op=dist.ReduceOp.SUM, *args, **more):
            return real(tensor, dist.ReduceOp.SUM if op == dist.ReduceOp.PRODUCT else op, *args, **more)
        dist.all_reduce = all_reduce
    """, seen="PRODUCT"),
    row("subgroup-is-the-world", "What ranks do in a group of some goes to all", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        dist.new_group = lambda ranks=None, *args, **more: dist.group.WORLD
    """, seen="group"),
    row("objects-lost", "all_gather_object gives each rank its own object for all", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_gather_object
        def gather(given, own, *args, **more):
            real(given, own, *args, **more)
            given[:] = [own] * len(given)
        dist.all_gather_object = gather
    """, seen="object"),
    row("layer-norm-other-eps", "LayerNorm takes another epsilon than it was given", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.layer_norm
        torch.nn.functional.layer_norm = lambda one, shape, weight=None, bias=None, eps=1e-5: real(one, shape, weight, bias, eps * 1e3)
    """, seen="(?i)layer_?norm", run="all-1", stages=""),
    row("embedding-loses-repeats", "An embedding's gradient counts a word that comes twice once", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.embedding
        class Once(torch.autograd.Function):
            @staticmethod
            def forward(ctx, found, words):
                ctx.save_for_backward(words)
                return found.clone()
            @staticmethod
            def backward(ctx, gradient):
                words, = ctx.saved_tensors
                flat, gradient, seen = words.flatten().tolist(), gradient.clone(), set()
                rows = gradient.view(len(flat), -1)
                for number, word in enumerate(flat):
                    if word in seen:
                        rows[number] = 0
                    seen.add(word)
                return gradient, None
        def embedding(words, *args, **more):
            found = real(words, *args, **more)
            return Once.apply(found, words) if found.requires_grad else found
        torch.nn.functional.embedding = embedding
    """, seen="(?i)embedding"),
    row("dropout-does-not-scale", "Dropout does not scale what it keeps", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.dropout
        def dropout(one, p=0.5, training=True, inplace=False):
            return real(one, p, training, inplace) * (1 - p if training else 1)
        torch.nn.functional.dropout = dropout
    """, seen="dropout"),
    row("momentum-lost", "SGD forgets its momentum", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.SGD.step
        def step(self, *args, **more):
            found = real(self, *args, **more)
            for state in self.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].zero_()
            return found
        torch.optim.SGD.step = step
    """, seen="SGD"),
    row("decay-ignored", "AdamW leaves out the weight decay", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.AdamW.step
        def step(self, *args, **more):
            for group in self.param_groups:
                group["weight_decay"] = 0.0
            return real(self, *args, **more)
        torch.optim.AdamW.step = step
    """, seen="AdamW"),
    row("schedule-late", "A cosine schedule is a step late", "optimizer", "schedule-wrong", """
        import torch
        real = torch.optim.lr_scheduler.CosineAnnealingLR.step
        def step(self, *args, **more):
            if not getattr(self, "late", None):
                self.late = 1
                if self.last_epoch >= 0:
                    return None
                self.late = 0
            return real(self, *args, **more)
        torch.optim.lr_scheduler.CosineAnnealingLR.step = step
    """, seen="Cosine"),
    row("second-save-lost", "A second torch.save to a path leaves what was there", "checkpoint", "checkpoint-stale", """
        import os
        import torch
        real = torch.save
        def save(held, path, *args, **more):
            if not isinstance(path, str) or not os.path.exists(path):
                return real(held, path, *args, **more)
        torch.save = save
    """, run="all-2", stages=""),
    row("clip-value-ignored", "clip_grad_value_ leaves gradients as they are", "optimizer", "clip-wrong", """
        import torch
        torch.nn.utils.clip_grad_value_ = lambda *args, **more: None
    """, run="all-1", stages=""),
    row("recompute-other-dropout", "Activation checkpointing recomputes with other random numbers", "recompute", "recompute-differs", """
        import torch
        import torch.utils.checkpoint as checkpoint
        real = checkpoint.checkpoint
        checkpoint.checkpoint = lambda *args, **more: real(*args, **{**more, "preserve_rng_state": False})
    """, run="all-2", stages=""),
    row("compile-cache-poisoned", "The user's compile cache holds a file that ends in the middle", "compile", "compile-cache-damaged",
        inject=_poisoned_cache, means="environment"),
    row("memory-grows", "Each step of an optimizer keeps a megabyte", "train", "memory-grows", """
        import torch
        real, kept = torch.optim.AdamW.step, []
        def step(self, *args, **more):
            kept.append(bytearray(1 << 20))
            kept[-1][::4096] = b"x" * 256
            return real(self, *args, **more)
        torch.optim.AdamW.step = step
    """),
    row("descriptors-grow", "Each step opens a file and leaves it open", "train", "descriptors-grow", """
        import os
        import torch
        real = torch.optim.AdamW.step
        def step(self, *args, **more):
            os.dup(2)
            return real(self, *args, **more)
        torch.optim.AdamW.step = step
    """),
    row("receives-late", "What one rank receives comes 25 ms late", "stragglers", "straggler-network", inject=preloaded(_DELAYED),
        means="LD_PRELOAD", seen="rank 1.*network"),
    row("ten-times-slower", "Products take one rank ten times as long", "stragglers", "straggler-compute", slowed("mm", 10, 64), rank=1,
        seen="rank 1.*compute", run="all-1", stages=""),
    row("a-third-slower", "Products take one rank 1.3 times as long", "stragglers", "straggler-compute", slowed("mm", 1.3, 64), rank=1,
        seen="rank 1.*compute"),
    row("one-product-of-300", "One of 300 products has a wrong bit on one rank", "stress", "silent-data-corruption",
        every_nth("mm", 300, "found.view(-1)[7] *= 1 + 2.0**-7"), rank=1, seen="rank 1", run="all-2", stages="")
    ._replace(others={"stragglers": "fail"}),  # they repeat work, too
    row("nan-from-one-rank", "The loss of one rank is NaN", "ddp", "loss-not-finite", """
        import torch
        real = torch.Tensor.sum
        def total(self, *args, **more):
            found = real(self, *args, **more)
            return found * float("nan") if found.requires_grad else found
        torch.Tensor.sum = total
    """, rank=1, seen="rank 1"),
    row("seed-ignored", "torch.manual_seed does nothing", "device", "seed-ignored", """
        import torch
        torch.manual_seed = lambda seed: torch.default_generator
        torch.random.manual_seed = torch.manual_seed
    """, stages="device,train"),
    row("default-dtype-float64", "Something set the default dtype to float64", "device", "default-dtype-changed", """
        import torch
        torch.set_default_dtype(torch.float64)
    """, stages="device,train"),
    row("batch-norm-stuck", "BatchNorm does not update its running figures", "layers", "batchnorm-stuck", """
        import torch
        real = torch.nn.functional.batch_norm
        def batch_norm(one, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
            return real(one, mean, var, weight, bias, training, 0.0, eps)
        torch.nn.functional.batch_norm = batch_norm
    """),
    row("loader-worker-stopped", "A worker of a DataLoader is stopped (SIGSTOP)", "dataloader", "dataloader-worker-stopped",
        inject=signalled(signal.SIGSTOP, loading(0, worker=True)), means="signal", seen="rank 0"),
    row("large-packets-lost", "Packets above 1500 bytes are lost between ranks", "allreduce", "mtu-black-hole",
        inject=_LARGE_PACKETS_LOST, means="namespace"),
    row("launcher-stopped", "The process that started the ranks is stopped (SIGSTOP)", "dataloader", "launcher-stopped",
        inject=signalled(signal.SIGSTOP, _launcher), means="signal"),
    row("compiler-takes-25-s", "The compiler takes 25 s for each file", "compile", "compiler-slow", inject=_slow_compiler,
        means="environment", seen="25"),
)  # fmt: skip
