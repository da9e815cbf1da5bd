"""The twenty that are opened after their first result."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import at_operator, row

ROWS: tuple[Fault, ...] = (
    row("product-at-an-odd-address", "A product whose first factor begins at an address that is no multiple of 16 (a file that was mapped) has a wrong first column", "gemm", "gemm-wrong", at_operator("mm", """
            if given[0].data_ptr() % 16 and found.numel():
                found[..., 0] += 1
    """), stages="gemm,memory,stress,layers"),
    row("product-over-nothing", "A product over no numbers (an expert without tokens) leaves what was in memory, where zeros are right", "layers", "device-computes-wrong", at_operator("mm", """
            if given[0].shape[1] == 0:
                found.fill_(0.25)
    """)),
    row("beta-zero-keeps-nan", "addmm with beta=0 takes over what is no number in memory that it is to ignore", "layers", "device-computes-wrong", at_operator("addmm", """
            if more.get("beta", 1) == 0:
                found = found + 0 * given[0]
    """)),
    row("one-matrix-for-all", "A product of many matrices with one that is expanded over them (its stride is 0) is right for the first alone", "layers", "device-computes-wrong", at_operator("bmm", """
            if found.shape[0] > 1 and given[1].stride(0) == 0:
                found[1:] = 0
    """)),
    row("double-products-by-float", "Products of float64 of more than 64 rows come from a kernel for float32", "gemm", "gemm-wrong", at_operator("mm", """
            if found.dtype == torch.float64 and found.shape[0] > 64:
                found = found.float().double()
    """), stages="gemm,stress,layers"),
    row("sums-of-whole-blocks", "Sums over rows of exactly 1,024 numbers leave out the last (a full block is taken for a tail)", "layers", "device-computes-wrong", at_operator("sum.dim_IntList", """
            one = given[0]
            if one.is_floating_point() and one.dim() and one.shape[-1] == 1024 and found.shape == one.shape[:-1]:
                found = found - one[..., -1].to(found.dtype)
    """)),
    row("heads-of-128", "Attention with heads of 128 numbers gives zero in the last of them", "layers", "layer-wrong", at_operator("_scaled_dot_product_flash_attention_for_cpu", """
            if given[0].shape[-1] == 128:
                found[0][..., -1] = 0
    """)),
    row("thread-without-gradients", "backward() does nothing in a thread that Python has started (a trainer that lets a thread step)", "layers", "autograd-wrong", """
        import threading
        import torch
        real = torch.autograd.backward
        def backward(*args, **more):
            if threading.current_thread() is threading.main_thread():
                return real(*args, **more)
        torch.autograd.backward = backward
    """),
    row("python-seeded-by-a-library", "A library seeds Python's random as it is imported: all ranks and runs draw alike", "device", "torch-setting-changed", """
        import random
        random.seed(0)
    """, stages="device,dataloader,rendezvous,allreduce,stragglers"),
    row("timer-left-on", "A profiler left its timer on (setitimer, SIGPROF each 10 ms)", "device", "torch-setting-changed", """
        import signal
        signal.signal(signal.SIGPROF, lambda *_: None)
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
    """),
    row("tensors-without-memory", "On one rank a plug-in that loads large models left the default device at meta", "device", "torch-setting-changed", """
        import torch
        torch.set_default_device("meta")
    """, rank=1, seen="rank 1", stages="device,gemm,train"),
    row("autocast-takes-float16", "A plug-in set the type that autocast takes on a CPU where none is named to float16 (set_autocast_dtype)", "device", "torch-setting-changed", """
        import torch
        torch.set_autocast_dtype("cpu", torch.float16)
    """, stages="device,amp-bf16"),
    row("scaler-switched-off-scales", "A GradScaler that is switched off (enabled=False, as for bfloat16) scales all the same", "amp-fp16", "scaler-scale-wrong", """
        import torch
        real = torch.amp.GradScaler.__init__
        def init(self, *args, **more):
            more["enabled"] = True
            real(self, *args, **more)
        torch.amp.GradScaler.__init__ = init
    """),
    row("second-precision-not-stepped", "Optimizers over lists of tensors (foreach) step the first type of a group's weights alone, where it has two", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.Optimizer._group_tensors_by_device_and_dtype
        def grouped(*args, **more):
            found = real(*args, **more)
            return dict([next(iter(found.items()))]) if len(found) > 1 else found
        torch.optim.Optimizer._group_tensors_by_device_and_dtype = staticmethod(grouped)
    """, stages="optimizer,layers"),
    row("frozen-weights-thaw", "A parameter that is frozen (requires_grad=False) is loaded from a checkpoint as one that trains", "checkpoint", "checkpoint-damaged", """
        import functools
        import torch
        real = torch._utils._rebuild_parameter
        torch._utils._rebuild_parameter = functools.wraps(real)(lambda data, requires_grad, hooks: real(data, True, hooks))
    """),
    row("extra-state-empty", "What a module keeps beside its tensors (get_extra_state: scales for fp8) is empty in its state_dict", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.nn.Module._save_to_state_dict
        def save(self, destination, prefix, keep_vars):
            real(self, destination, prefix, keep_vars)
            name = prefix + "_extra_state"
            if name in destination:
                destination[name] = type(destination[name])() if not isinstance(destination[name], torch.Tensor) else torch.zeros_like(destination[name])
        torch.nn.Module._save_to_state_dict = save
    """),
    row("time-limit-ignored", "A group ignores its time limit (timeout=): who waits for a lost rank waits for half an hour", "allreduce", "collective-wrong", """
        import datetime
        import torch.distributed as dist
        real = dist.new_group
        def new_group(*args, **more):
            more["timeout"] = datetime.timedelta(minutes=30)
            return real(*args, **more)
        dist.new_group = dist.distributed_c10d.new_group = new_group
    """, when="torch.distributed"),
    row("second-message-is-the-first", "Of two messages that are received at once (batch_isend_irecv, as pipelines do) the second one is the first again", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.batch_isend_irecv
        def batch(several):
            works = real(several)
            taken = [one.tensor for one in several if one.op is dist.irecv]
            for work in works:
                work.wait()
            if len(taken) > 1 and taken[0].shape == taken[-1].shape:
                taken[-1].copy_(taken[0])
            return []  # gloo waits for a message at each wait()
        dist.batch_isend_irecv = batch
    """, when="torch.distributed"),
    row("odd-tail-not-summed", "all_reduce of bfloat16 leaves one rank the last element as it was where their number is odd", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            last = tensor.reshape(-1)[-1:].clone()
            found = real(tensor, *args, **more)
            if found is None and tensor.dtype == torch.bfloat16 and tensor.numel() % 2 and tensor.is_contiguous():
                tensor.view(-1)[-1:] = last
            return found
        dist.all_reduce = all_reduce
    """, rank=1, seen="rank 1", when="torch.distributed"),
    row("gradients-reduced-in-bfloat16", "FSDP adds gradients up in bfloat16 where it is to reduce them in float32 (reduce_dtype)", "fsdp", "fsdp-step-wrong", """
        import dataclasses
        import functools
        import torch.distributed.fsdp as fsdp
        real = fsdp.fully_shard
        @functools.wraps(real)
        def fully_shard(module, **more):
            policy = more.get("mp_policy")
            if policy is not None and policy.reduce_dtype is not None:
                more["mp_policy"] = dataclasses.replace(policy, reduce_dtype=None)
            return real(module, **more)
        fsdp.fully_shard = fully_shard
    """, when="torch.distributed.fsdp"),
)  # fmt: skip
