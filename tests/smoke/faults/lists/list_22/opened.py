"""The sixteen that are opened after their first result."""

from __future__ import annotations

import os

from smoke.faults.bench import Bench
from smoke.faults.means import tool, unshared
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

_UID = 12345


def processes_of_a_user(count: int) -> Inject:
    """``ulimit -u``, which binds neither root nor who has CAP_SYS_RESOURCE: another user, who may read what is root's."""

    def inject(bench: Bench) -> None:
        os.chown(bench.folder, _UID, _UID)
        os.chown(bench.folder / "home", _UID, _UID)
        bench.before += [tool("setpriv"), f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups"]
        bench.before += [
            "--inh-caps=-all,+dac_override",
            "--ambient-caps=-all,+dac_override",
            tool("prlimit"),
            f"--nproc={count}",
        ]

    return inject


ROWS: tuple[Fault, ...] = (
    row("whole-numbers-by-double", "all_reduce of int64 adds through float64: sums above 2**53 are rounded", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            if tensor.dtype != torch.int64:
                return real(tensor, *args, **more)
            wide = tensor.double()
            found = real(wide, *args, **more)
            if found is not None:
                found.wait()
            tensor.copy_(wide)
            return found
        dist.all_reduce = all_reduce
    """, when="torch.distributed"),
    row("gathered-later-swapped", "An asynchronous all_gather_into_tensor gives the ranks' parts in another order", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.all_gather_into_tensor
        class Waited:
            def __init__(self, work, tensor):
                self.work, self.tensor = work, tensor
            def __getattr__(self, name):
                return getattr(self.work, name)
            def wait(self, *args, **more):
                found = self.work.wait(*args, **more)
                self.tensor.copy_(self.tensor.view(dist.get_world_size(), -1).flip(0).reshape(self.tensor.shape).clone())
                return found
        def all_gather_into_tensor(tensor, *args, **more):
            found = real(tensor, *args, **more)
            return Waited(found, tensor) if more.get("async_op") else found
        dist.all_gather_into_tensor = all_gather_into_tensor
    """, when="torch.distributed"),
    row("never-at-the-barrier", "One rank never comes to the second barrier", "allreduce", "rank-hung", """
        import time
        import torch.distributed as dist
        real, calls = dist.barrier, [0]
        def barrier(*args, **more):
            calls[0] += 1
            if calls[0] == 2:
                time.sleep(10000)
            return real(*args, **more)
        dist.barrier = barrier
    """, rank=1, when="torch.distributed", seen="rank 1", stages="device,rendezvous,allreduce,ddp"),
    row("link-of-40-mbit", "A shaper leaves ranks of one host 40 Mbit/s", "allreduce", "collective-slow", means="namespace", stages="device,rendezvous,allreduce,stragglers",
        inject=unshared("--net", "ip link set lo up mtu 1500\ntc qdisc add dev lo root tbf rate 40mbit burst 64k latency 400ms")),
    row("complex-saved-real", "torch.save keeps of complex numbers the real part alone", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.save
        def halved(held):
            if isinstance(held, torch.Tensor) and held.is_complex():
                return torch.complex(held.real, torch.zeros_like(held.real))
            if type(held) in (dict, list, tuple):
                return type(held)((name, halved(one)) for name, one in held.items()) if isinstance(held, dict) else type(held)(map(halved, held))
            return held
        torch.save = lambda held, *args, **more: real(halved(held), *args, **more)
    """),
    row("user-of-few-processes", "ulimit -u: the user may have 14 processes and threads", "dataloader", "nproc-limit-too-low", means="rlimit", stages="device,gemm,dataloader",
        inject=processes_of_a_user(14)),
    row("convolutions-slower", "Convolutions take one rank half as long again", "stragglers", "straggler-compute", """
        import time
        import torch
        def slowed(real):
            def slow(*args, **more):
                began = time.perf_counter()
                found = real(*args, **more)
                until = began + 1.5 * (time.perf_counter() - began)
                while time.perf_counter() < until:
                    pass
                return found
            return slow
        for name in ("conv1d", "conv2d"):
            setattr(torch.nn.functional, name, slowed(getattr(torch.nn.functional, name)))
        torch.conv2d = slowed(torch.conv2d)
        torch.nn.Conv2d._conv_forward = slowed(torch.nn.Conv2d._conv_forward)
    """, rank=1, seen="rank 1"),
    row("norm-after-clipping", "clip_grad_norm_ returns the norm after clipping, not the one before", "optimizer", "clip-wrong", """
        import torch
        real = torch.nn.utils.clip_grad_norm_
        def clip(held, norm, *args, **more):
            found = real(held, norm, *args, **more)
            return found.clamp(max=float(norm))
        torch.nn.utils.clip_grad_norm_ = clip
    """),
    row("tail-not-dropped", "DistributedSampler with drop_last=True fills the last round up with samples given again", "sampler", "sampler-shards-overlap", """
        from torch.utils.data.distributed import DistributedSampler
        real = DistributedSampler.__init__
        def init(self, *args, drop_last=False, **more):
            real(self, *args, drop_last=False, **more)
        DistributedSampler.__init__ = init
    """, when="torch.utils.data"),
    row("parts-overlap", "random_split gives its second part samples of the first (what is validated was trained on)", "dataloader", "dataloader-loses-samples", """
        import torch.utils.data as data
        real = data.random_split
        def random_split(*args, **more):
            found = real(*args, **more)
            if len(found) > 1:
                first, second = found[0], found[1]
                second.indices = [*list(first.indices)[: max(1, len(second) // 4)], *list(second.indices)[max(1, len(second) // 4):]]
            return found
        data.random_split = data.dataset.random_split = random_split
    """, when="torch.utils.data"),
    row("permutation-repeats", "torch.randperm of more than 1000 gives its first number once more in place of its last", "device", "random-numbers-wrong", """
        import torch
        real = torch.randperm
        def randperm(count, *args, **more):
            found = real(count, *args, **more)
            if count > 1000:
                found[-1] = found[0]
            return found
        torch.randperm = randperm
    """, stages="device,layers,dataloader"),
    row("muon-not-orthogonal", "Muon steps with its momentum as it is, not made orthogonal", "layers", "optimizer-wrong", """
        from torch.optim import _muon
        _muon._zeropower_via_newtonschulz = lambda grad, *args, **more: grad / grad.norm().clamp(min=1e-7)
    """),
    row("shards-not-let-go", "FSDP keeps the whole model after the forward pass where it is to let it go (reshard_after_forward)", "fsdp", "fsdp-not-sharded", """
        import torch.distributed.fsdp as fsdp
        real = fsdp.fully_shard
        fsdp.fully_shard = lambda module, **more: real(module, **{**more, "reshard_after_forward": False})
    """, when="torch.distributed.fsdp"),
    row("epochs-leave-pipes", "Each epoch of a DataLoader leaves a pipe open", "dataloader", "descriptors-grow", """
        import os
        from torch.utils.data import DataLoader
        real, kept = DataLoader.__iter__, []
        def begun(self):
            kept.append(os.pipe())
            return real(self)
        DataLoader.__iter__ = begun
    """, when="torch.utils.data"),
    row("compiled-rsqrt", "The compiler's code for 1/sqrt(x) is off by a thousandth", "compile", "compiled-differs", """
        from torch._inductor.codegen import cpp
        def spoil(owner):
            real = owner.rsqrt
            owner.rsqrt = staticmethod(lambda x: "(%s * decltype(%s)(0.999f))" % (real(x), real(x)))
        spoil(cpp.CppOverrides)
        spoil(cpp.CppVecOverrides)
    """, when="torch._inductor.codegen.cpp"),
    row("fork-rng-leaks", "What is drawn within torch.random.fork_rng counts after it, too", "layers", "random-numbers-wrong", """
        import contextlib
        import torch
        @contextlib.contextmanager
        def fork_rng(*args, **more):
            yield
        torch.random.fork_rng = fork_rng
    """, stages="device,layers,recompute"),
)  # fmt: skip
