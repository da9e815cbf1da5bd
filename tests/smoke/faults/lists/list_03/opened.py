"""Eighteen faults, opened after the first result."""

from __future__ import annotations

import os
import signal

from smoke.faults.bench import Bench
from smoke.faults.means import loading, signalled, variables
from smoke.faults.short import row


def _launcher(bench: Bench) -> int | None:
    """The process that started rank 0, once that has started workers of a DataLoader."""
    pid = loading(0)(bench)
    if pid is None:
        return None
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _bound(bench: Bench) -> None:
    """What a launcher's template sets for C programs that run alone: each rank's main thread goes to the first place."""
    variables(OMP_PROC_BIND="true", OMP_PLACES="{" + str(min(os.sched_getaffinity(0))) + "}")(bench)


ROWS = (
    row("denormals-flushed", "A library makes the processor take denormal numbers for zero", "device", "float-environment-changed", """
        import torch
        torch.set_flush_denormal(True)
    """, rank=1, seen="denormal.*rank 1|rank 1.*denormal"),
    row("autograd-off", "Something switched autograd off", "device", "torch-setting-changed", """
        import torch
        torch.set_grad_enabled(False)
    """, seen="grad"),
    row("products-lowered", "Something lets float32 products be computed in bfloat16", "device", "torch-setting-changed", """
        import torch
        torch.set_float32_matmul_precision("medium")
    """, rank=1, seen="rank 1.*medium"),
    row("normal-too-wide", "torch.randn draws with twice the spread", "device", "random-numbers-wrong", """
        import torch
        real = torch.randn
        torch.randn = lambda *args, **more: real(*args, **more) * 2
    """, seen="randn"),
    row("rms-norm-without-weight", "RMSNorm leaves out its weight", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.rms_norm
        torch.nn.functional.rms_norm = lambda one, shape, weight=None, eps=None: real(one, shape, None, eps)
    """, seen="(?i)rms_?norm"),
    row("attention-mask-ignored", "Attention ignores the mask that it is given", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = lambda *args, **more: real(*args, **{**more, "attn_mask": None})
    """, seen="(?i)attention.*mask|mask.*attention"),
    row("softmax-overflows", "softmax does not take the largest off first", "layers", "layer-wrong", """
        import torch
        torch.softmax = lambda one, dim, **more: torch.exp(one) / torch.exp(one).sum(dim, keepdim=True)
    """, seen="softmax"),
    row("foreach-forgets-decay", "AdamW over lists of tensors (foreach) leaves out the decay", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.AdamW.__init__
        def init(self, *args, foreach=None, weight_decay=0.01, **more):
            real(self, *args, foreach=foreach, weight_decay=0.0 if foreach else weight_decay, **more)
        torch.optim.AdamW.__init__ = init
    """, seen="AdamW.*foreach"),
    row("one-cycle-without-warm-up", "OneCycleLR begins at its highest rate", "optimizer", "schedule-wrong", """
        import torch
        real = torch.optim.lr_scheduler.OneCycleLR.__init__
        def init(self, *args, div_factor=25.0, **more):
            real(self, *args, div_factor=1.0, **more)
        torch.optim.lr_scheduler.OneCycleLR.__init__ = init
    """, seen="OneCycleLR"),
    row("short-batch-dropped", "A DataLoader drops the short last batch, which it is to keep", "dataloader", "dataloader-loses-samples", """
        import torch.utils.data as data
        real = data.BatchSampler.__init__
        data.BatchSampler.__init__ = lambda self, sampler, batch_size, drop_last: real(self, sampler, batch_size, True)
    """, when="torch.utils.data"),
    row("rename-leaves-the-old", "A file renamed over another leaves what was there", "checkpoint", "checkpoint-stale", """
        import os
        def replace(one, other):
            if os.path.exists(other):
                os.unlink(one)
            else:
                os.link(one, other)
                os.unlink(one)
        os.replace = os.rename = replace
    """, seen="renam"),
    row("loss-nan-under-autocast", "Under autocast the loss of one rank is NaN", "amp-bf16", "loss-not-finite", """
        import torch
        real, calls = torch.nn.functional.cross_entropy, [0]
        def loss(*args, **more):
            found = real(*args, **more)
            if torch.is_autocast_enabled("cpu"):
                calls[0] += 1
                return found * float("nan") if calls[0] > 5 else found
            return found
        torch.nn.functional.cross_entropy = loss
    """, rank=1, seen="rank 1"),
    row("bytes-summed", "all_reduce of bytes adds where the largest was asked for", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, op=dist.ReduceOp.SUM, *args, **more):
            if tensor.dtype == torch.uint8 and op == dist.ReduceOp.MAX:
                op = dist.ReduceOp.SUM
            return real(tensor, op, *args, **more)
        dist.all_reduce = all_reduce
    """, seen="uint8"),
    row("unequal-parts-lost", "all_to_all_single takes parts of unequal sizes for equal ones", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_to_all_single
        def exchange(output, given, output_split_sizes=None, input_split_sizes=None, *args, **more):
            if not input_split_sizes:
                return real(output, given, output_split_sizes, input_split_sizes, *args, **more)
            done = real(output, given, output_split_sizes, input_split_sizes, *args, **more)
            if len(set(input_split_sizes)) > 1:
                output.copy_(output.roll(1))
            return done
        dist.all_to_all_single = exchange
    """, seen="all_to_all"),
    row("bound-to-one-core", "OpenMP binds each rank to the same core", "stragglers", "openmp-affinity-pins-process",
        inject=_bound, means="environment"),
    row("more-threads", "One rank computes with eight times as many threads as the other", "stragglers", "ranks-unlike", """
        import torch
        torch.set_num_threads(8 * torch.get_num_threads())
    """, rank=1, seen="rank 1.*threads"),
    row("other-code-path", "One rank computes with other instructions than the other", "rendezvous", "ranks-unlike", """
        import os
        os.environ["ATEN_CPU_CAPABILITY"] = "default"
    """, rank=1, when="json", seen="ATEN_CPU_CAPABILITY"),
    row("launcher-killed", "The process that started the ranks is killed", "dataloader", "launcher-killed",
        inject=signalled(signal.SIGKILL, _launcher), means="signal"),
)  # fmt: skip
