"""Six faults that stay sealed until the rest is built: only their first result counts."""

from __future__ import annotations

from smoke.faults.means import all_of, as_user, unshared
from smoke.faults.short import row

ROWS = (
    row("growth-count-kept", "The scaler goes on counting good steps over a bad one", "amp-fp16", "scaler-scale-wrong", """
        import torch
        real = torch._amp_update_scale_
        def update(scale, count, found, *rest):
            before = count.clone()
            done = real(scale, count, found, *rest)
            if float(found) > 0:
                count.copy_(before)
            return done
        torch._amp_update_scale_ = update
    """),
    row("static-graph-not-synchronised", "DDP with static_graph does not synchronise", "ddp", "ddp-gradients-not-synchronised", """
        import torch.nn.parallel.distributed as parallel
        real = parallel.DistributedDataParallel.__init__
        def init(self, *args, static_graph=False, **more):
            real(self, *args, **more)
            if static_graph:
                self.require_backward_grad_sync = False
        parallel.DistributedDataParallel.__init__ = init
    """, when="torch.nn.parallel.distributed", seen="static_graph"),
    row("sharded-norm-of-own-part", "Clipping takes each rank's part of a sharded gradient for the whole", "fsdp", "clip-wrong", """
        import torch
        real = torch.nn.utils.clip_grad_norm_
        def clip(parameters, max_norm, *args, **more):
            held = [one for one in parameters if one.grad is not None]
            parts = [getattr(one.grad, "_local_tensor", None) for one in held]
            if not parts or parts[0] is None:
                return real(held, max_norm, *args, **more)
            norm = torch.stack([part.norm() for part in parts]).norm()
            for part in parts:
                part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
            return norm
        torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip
    """),
    row("each-worker-alone", "Workers of an iterable data set are each told to be the only one", "dataloader",
        "dataloader-loses-samples", """
        import types
        import torch.utils.data as data
        real = data.get_worker_info
        def info():
            found = real()
            return found and types.SimpleNamespace(id=found.id, num_workers=1, seed=found.seed, dataset=found.dataset)
        data.get_worker_info = info
    """, when="torch.utils.data", seen="(?i)iterable"),
    row("channels-last-norm", "BatchNorm of pictures in channels_last takes other channels' weights", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.batch_norm
        def norm(one, *args, **more):
            if one.dim() == 4 and one.is_contiguous(memory_format=torch.channels_last) and not one.is_contiguous():
                return real(one.flip(1), *args, **more).flip(1)
            return real(one, *args, **more)
        torch.nn.functional.batch_norm = norm
    """, seen="channels_last"),
    row("shm-of-another", "/dev/shm may be written by another user alone", "dataloader", "dev-shm-too-small",
        inject=all_of(unshared("--mount", "mount -t tmpfs -o mode=755,uid=12345 tmpfs /dev/shm"), as_user(1000)),
        means="namespace"),
)  # fmt: skip
