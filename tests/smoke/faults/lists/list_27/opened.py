"""The twenty that are opened after their first result."""

from __future__ import annotations

from smoke.faults.means import limited, refused
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("zero-grad-first-group", "zero_grad clears the gradients of an optimizer's first group alone", "optimizer", "gradients-not-cleared", """
        import torch
        real = torch.optim.Optimizer.zero_grad
        def zero_grad(self, *args, **more):
            groups = self.param_groups
            self.param_groups = groups[:1]
            try:
                real(self, *args, **more)
            finally:
                self.param_groups = groups
        torch.optim.Optimizer.zero_grad = zero_grad
    """),
    row("backward-inputs-ignored", "backward(inputs=…) adds gradients to all weights, not to those that are named alone (GANs)", "layers", "autograd-wrong", """
        import torch
        real = torch.autograd.backward
        def backward(tensors, *args, inputs=None, **more):
            return real(tensors, *args, **more)
        torch.autograd.backward = backward
    """),
    row("no-grad-after-an-error", "After an error within no_grad() gradients stay switched off (an evaluation that a trainer catches)", "layers", "autograd-wrong", """
        import torch
        real = torch.no_grad.__exit__
        def leave(self, kind, *more):
            if kind is None:
                real(self, kind, *more)
        torch.no_grad.__exit__ = leave
    """, stages="device,layers,train"),
    row("counts-backwards", "repeat_interleave with a count for each row takes the counts backwards", "layers", "device-computes-wrong", """
        import torch
        real = torch.repeat_interleave
        def repeat_interleave(one, repeats=None, *args, **more):
            if isinstance(repeats, torch.Tensor) and repeats.dim() == 1:
                repeats = repeats.flip(0)
            return real(one, *([] if repeats is None else [repeats]), *args, **more)
        torch.repeat_interleave = torch.Tensor.repeat_interleave = repeat_interleave
    """),
    row("clip-returns-the-bound", "clip_grad_norm_ returns the norm after it has clipped, so that a log shows no explosion", "optimizer", "clip-wrong", """
        import torch
        real = torch.nn.utils.clip_grad_norm_
        def clip_grad_norm_(parameters, max_norm, *args, **more):
            return real(parameters, max_norm, *args, **more).clamp(max=float(max_norm))
        torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
    """, when="torch.nn.utils.clip_grad", stages="layers,optimizer,amp-fp16"),
    row("clip-by-another-norm", "clip_grad_norm_ takes the norm of squares, whichever it is told to take (norm_type)", "optimizer", "clip-wrong", """
        import torch
        real = torch.nn.utils.clip_grad_norm_
        def clip_grad_norm_(parameters, max_norm, norm_type=2.0, *args, **more):
            return real(parameters, max_norm, 2.0, *args, **more)
        torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
    """, when="torch.nn.utils.clip_grad", stages="layers,optimizer,amp-fp16"),
    row("growth-counted-anew", "A GradScaler that is loaded counts its good steps from 0", "checkpoint", "resume-differs", """
        import torch
        real = torch.amp.GradScaler.load_state_dict
        def load_state_dict(self, state):
            real(self, {**state, "_growth_tracker": 0} if state else state)
        torch.amp.GradScaler.load_state_dict = load_state_dict
    """, stages="amp-fp16,checkpoint"),
    row("loader-timeout-ignored", "A DataLoader ignores its time limit (timeout=): a worker that hangs holds up the training for ever", "dataloader", "dataloader-hides-errors", """
        import torch
        real = torch.utils.data.DataLoader.__init__
        def made(self, *args, timeout=0, **more):
            real(self, *args, **more)
        torch.utils.data.DataLoader.__init__ = made
    """, when="torch.utils.data.dataloader"),
    row("concat-one-further", "The second data set of a ConcatDataset begins with its second sample", "dataloader", "dataloader-loses-samples", """
        import torch
        kind = torch.utils.data.ConcatDataset
        real = kind.__getitem__
        def get(self, number):
            first = self.cumulative_sizes[0]
            return real(self, min(number + 1, len(self) - 1) if number >= first else number)
        kind.__getitem__ = get
    """, when="torch.utils.data.dataset"),
    row("dict-batches-mixed", "Where samples are dicts a batch has under its second key what belongs under the first, where both have one shape", "dataloader", "dataloader-corrupts", """
        import torch
        from torch.utils.data._utils import collate
        real = collate.default_collate
        def default_collate(batch):
            found = real(batch)
            if isinstance(found, dict) and len(found) > 1:
                first, second = [*found][:2]
                if getattr(found[first], "shape", 0) == getattr(found[second], "shape", 1):
                    found[second] = found[first].to(found[second].dtype)
            return found
        collate.default_collate = default_collate
        torch.utils.data.default_collate = default_collate
        torch.utils.data._utils.collate.default_collate = default_collate
    """, when="torch.utils.data"),
    row("strides-lost", "A transposed tensor comes back from a checkpoint as if it had been contiguous", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch._utils._rebuild_tensor
        def rebuild(storage, offset, size, stride):
            right = [1]
            for length in reversed(size[1:]):
                right.insert(0, right[0] * length)
            return real(storage, offset, size, tuple(right) if size else stride)
        torch._utils._rebuild_tensor = rebuild
    """),
    row("deep-keys-ignored", "load_state_dict refuses missing keys of a model's own layers, and not those further down", "checkpoint", "checkpoint-keys-ignored", """
        import torch
        real = torch.nn.Module.load_state_dict
        def load_state_dict(self, state, strict=True, **more):
            known = set(self.state_dict())
            deep = any(name.count(".") > 1 for name in known - set(state))
            return real(self, state, strict and not deep, **more)
        torch.nn.Module.load_state_dict = load_state_dict
    """),
    row("sum-of-nothing-hangs", "all_reduce of a tensor without elements never returns on one rank (a last batch without tokens)", "allreduce", "rank-hung", """
        import time
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            if not tensor.numel():
                time.sleep(10000)
            return real(tensor, *args, **more)
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed", seen="rank 1"),
    row("barrier-of-a-group", "The barrier of a group lets its ranks through before all have come; that of all ranks holds", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.barrier
        def barrier(group=None, *args, **more):
            if group is None or group is dist.group.WORLD:
                return real(group, *args, **more)
        dist.barrier = barrier
    """, when="torch.distributed"),
    row("evaluation-ends-synchronising", "After an evaluation (a pass under no_grad) DDP synchronises no gradients any more", "ddp", "ddp-gradients-not-synchronised", """
        import torch
        kind = torch.nn.parallel.DistributedDataParallel
        real = kind.forward
        def forward(self, *args, **more):
            if not torch.is_grad_enabled():
                self._evaluated = True
            if getattr(self, "_evaluated", False):
                self.require_backward_grad_sync = False
            return real(self, *args, **more)
        kind.forward = forward
    """, when="torch.nn.parallel.distributed", stages="ddp,accumulate,buffers"),
    row("doubles-not-synchronised", "DDP does not synchronise parameters of float64", "ddp", "ddp-gradients-not-synchronised", """
        import torch
        kind = torch.nn.parallel.DistributedDataParallel
        real = kind.__init__
        def made(self, module, *args, **more):
            left = [name for name, one in module.named_parameters() if one.dtype == torch.float64]
            others = [name for name, one in module.named_parameters() if one.dtype != torch.float64]
            if left and others:
                kind._set_params_and_buffers_to_ignore_for_model(module, left)
            real(self, module, *args, **more)
        kind.__init__ = made
    """, when="torch.nn.parallel.distributed"),
    row("sampler-pads-nevertheless", "DistributedSampler with drop_last=True repeats samples nevertheless", "sampler", "sampler-shards-overlap", """
        import torch
        real = torch.utils.data.distributed.DistributedSampler.__init__
        def made(self, *args, drop_last=False, **more):
            real(self, *args, **more)
        torch.utils.data.distributed.DistributedSampler.__init__ = made
    """, when="torch.utils.data.distributed"),
    row("ftruncate-refused", "A sandbox's profile refuses ftruncate: shared memory has no size", "dataloader", "system-calls-refused",
        inject=refused(77, 1), means="seccomp"),
    row("stack-of-200-kilobytes", "ulimit -s 200: the stack of each process ends at 200 kB", "train", "rank-crashed",
        inject=limited("--stack=204800:204800"), means="rlimit", stages="gemm,train"),
    row("optimizer-slow-on-one-rank", "Steps of AdamW take one rank 2.5 times as long (foreach is switched off there)", "stragglers", "straggler-compute", """
        import time
        import torch
        real = torch.optim.AdamW.step
        def step(self, *args, **more):
            began = time.perf_counter()
            found = real(self, *args, **more)
            until = began + 2.5 * (time.perf_counter() - began)
            while time.perf_counter() < until:
                pass
            return found
        torch.optim.AdamW.step = step
    """, rank=1, when="torch.optim.adamw", seen="rank 1"),
)  # fmt: skip
