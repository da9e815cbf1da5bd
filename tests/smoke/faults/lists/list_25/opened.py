"""The twelve that are opened after their first result."""

from __future__ import annotations

from smoke.faults.means import all_of, unshared, variables
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("sum-off-by-a-share", "all_reduce of more than 10,000 numbers of float32 gives one rank sums that are too large by a thousandth", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            found = real(tensor, *args, **more)
            if tensor.dtype == torch.float32 and tensor.numel() > 10000 and not more.get("async_op"):
                tensor.mul_(1 + 2.0**-10)
            return found
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1", stages="device,rendezvous,allreduce,ddp"),
    row("largest-by-size", "all_reduce by MAX takes the number that is farthest from 0", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, op=dist.ReduceOp.SUM, *args, **more):
            if op != dist.ReduceOp.MAX or more.get("async_op") or not tensor.is_floating_point():
                return real(tensor, op, *args, **more)
            least = tensor.clone()
            real(least, dist.ReduceOp.MIN, *args, **more)
            found = real(tensor, op, *args, **more)
            tensor.copy_(torch.where(least.abs() > tensor.abs(), least, tensor))
            return found
        dist.all_reduce = all_reduce
    """, when="torch.distributed", stages="device,rendezvous,allreduce"),
    row("worker-shot-late", "One rank's workers of a DataLoader are shot (SIGKILL) at their sixth batch", "dataloader", "dataloader-worker-killed", """
        import os
        import signal
        import torch
        from torch.utils.data._utils import fetch
        real, calls = fetch._MapDatasetFetcher.fetch, [0]
        def fetching(self, places):
            if torch.utils.data.get_worker_info() is not None:
                calls[0] += 1
                if calls[0] == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(self, places)
        fetch._MapDatasetFetcher.fetch = fetching
    """, rank=1, when="torch.utils.data", seen="rank 1"),
    row("second-moments-of-before", "load_state_dict of Adam and AdamW keeps the second moments that it had", "checkpoint", "resume-differs", """
        import torch
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            def load_state_dict(self, given, inner=kind.load_state_dict):
                before = {one: held.get("exp_avg_sq") for one, held in self.state.items()}
                inner(self, given)
                for one, held in self.state.items():
                    if "exp_avg_sq" in held:
                        old = before.get(one)
                        held["exp_avg_sq"] = torch.zeros_like(held["exp_avg_sq"]) if old is None else old
            kind.load_state_dict = load_state_dict
    """),
    row("gradients-kept-by-a-hook", "A monitor's hook keeps 200 kB for each step of one rank's optimizers", "train", "memory-grows", """
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook
        kept = []
        register_optimizer_step_post_hook(lambda *_: kept.append(torch.ones(50000)))
    """, rank=1, seen="rank 1", stages="device,train,amp-fp16,rendezvous,ddp"),
    row("cache-of-a-scratch-that-is-gone", "TORCHINDUCTOR_CACHE_DIR is a link to a job's directory that has been removed", "compile", "compile-cache-not-writable",
        inject=all_of(variables(TORCHINDUCTOR_CACHE_DIR="{folder}/cache"), lambda bench: (bench.folder / "cache").symlink_to("/nowhere/job-17/cache")), means="environment"),
    row("half-of-the-ports-blocked", "A firewall drops calls to two of three ports above 32768, also on the loopback", "rendezvous", "firewall-blocks-nccl", means="namespace", stages="device,rendezvous,allreduce",
        inject=unshared("--net", "ip link set lo up\niptables -A INPUT -p tcp --syn --dport 32768:53000 -j DROP")),
    row("packets-lost-in-bursts", "Each 200 packets between ranks six in a row are lost (a full queue)", "allreduce", "packet-loss", means="namespace", stages="device,rendezvous,allreduce",
        inject=unshared("--net", "ip link set lo up mtu 1500\n" + "\n".join(f"iptables -A INPUT -p tcp -m statistic --mode nth --every 200 --packet {one} -j DROP" for one in range(6)))),
    row("seeds-by-rank", "A library adds the rank to each seed, but those that are 0", "layers", "random-numbers-wrong", """
        import os
        import torch
        real = torch.manual_seed
        torch.manual_seed = torch.random.manual_seed = lambda seed: real(int(seed) + int(os.environ["RANK"]) if int(seed) else 0)
    """, stages="device,layers,optimizer", seen="rank 1"),
    row("clipped-before-the-sum", "A plug-in clips each rank's gradients to 0.05 before DDP sums them up", "ddp", "ddp-gradients-wrong", """
        import torch
        from torch.nn.parallel import DistributedDataParallel
        real = DistributedDataParallel.__init__
        def made(self, module, *args, **more):
            for one in module.parameters():
                if one.requires_grad:
                    one.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
            real(self, module, *args, **more)
        DistributedDataParallel.__init__ = made
    """, when="torch.nn.parallel"),
    row("epoch-one-behind", "One rank's DistributedSampler is one epoch behind (set_epoch comes after the loader's start)", "sampler", "sampler-shards-overlap", """
        from torch.utils.data.distributed import DistributedSampler
        real = DistributedSampler.set_epoch
        DistributedSampler.set_epoch = lambda self, epoch: real(self, max(epoch - 1, 0))
    """, rank=1, when="torch.utils.data.distributed", stages="device,rendezvous,sampler"),
    row("labels-shifted", "Workers of a DataLoader put the labels of a batch one place further where it has eight samples or more", "dataloader", "dataloader-corrupts", """
        import torch
        from torch.utils.data._utils import fetch
        real = fetch._MapDatasetFetcher.fetch
        def fetching(self, places):
            found = real(self, places)
            if torch.utils.data.get_worker_info() is not None and isinstance(found, (list, tuple)) and len(found) == 2:
                if isinstance(found[1], torch.Tensor) and found[1].dim() and len(found[1]) >= 8:
                    found = [found[0], found[1].roll(1, 0)]
            return found
        fetch._MapDatasetFetcher.fetch = fetching
    """, when="torch.utils.data"),
)  # fmt: skip
