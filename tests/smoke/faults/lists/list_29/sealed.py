"""The eight faults that stayed sealed until the end."""

from __future__ import annotations

from smoke.faults.means import limited
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("compiled-stays-in-training", "A compiled module keeps the mode (training or evaluation) of its first call: after eval() dropout and batch norm still train (a guard that is not checked)", "compile", "compiled-differs", """
        import functools
        import torch
        real = torch.compile
        def keeping(call, owner):
            first = []
            @functools.wraps(call)
            def kept(*args, **more):
                parts = list(owner.modules())
                now = [one.training for one in parts]
                if not first:
                    first.extend(now)
                for one, mode in zip(parts, first):
                    one.training = mode
                try:
                    return call(*args, **more)
                finally:
                    for one, mode in zip(parts, now):
                        one.training = mode
            return kept
        def compile(model=None, *args, **more):
            found = real(model, *args, **more)
            if isinstance(model, torch.nn.Module):
                object.__setattr__(found, "forward", keeping(found.forward, model))
            elif isinstance(getattr(model, "__self__", None), torch.nn.Module):
                found = keeping(found, model.__self__)
            return found
        torch.compile = compile
    """),
    row("file-size-limit", "No file may be larger than 512 KiB (RLIMIT_FSIZE of a batch system or a quota): checkpoints and shared memory of more fail with EFBIG", "import", "file-size-limit", inject=limited("--fsize=524288"), means="rlimit", stages="checkpoint,dataloader"),
    row("reduce-scatter-tail", "reduce_scatter_tensor of shards with more than 4096 elements adds nothing of this rank to the last 64 elements of each shard", "allreduce", "collective-wrong", """
        import warnings
        import torch
        import torch.distributed
        if torch.distributed.is_available():
            held = torch.library.Library("c10d", "IMPL")
            torch._kept_by_a_blind_fault = held
            kernel = torch.library.get_kernel("c10d::_reduce_scatter_base_", "CPU")
            def wrong(keys, output, given, *args, **more):
                if output.numel() > 4096:
                    given = given.clone()
                    given.reshape(-1).view(-1, output.numel())[:, -64:] = 0
                return kernel.call_boxed(keys, output, given, *args, **more)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl("_reduce_scatter_base_", wrong, "CPU", with_keyset=True)
    """, rank=1, seen="rank 1", stages="rendezvous,allreduce"),
    row("conv-dw-channels-last", "The gradient of a convolution's weights is wrong for inputs in channels_last memory format: the last column of each kernel gets no gradient", "layers", "convolution-wrong", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_blind_fault = held

        def put(name):
            kernel = torch.library.get_kernel("aten::" + name, "CPU")
            def wrong(keys, *given, **more):
                found = kernel.call_boxed(keys, *given, **more)
                seen, weight = given[1], given[2]
                turned = seen.dim() == 4 and not seen.is_contiguous() and seen.is_contiguous(memory_format=torch.channels_last)
                if turned and weight.shape[-1] > 1 and found[1] is not None:
                    found[1][..., -1] = 0
                return found
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                held.impl(name, wrong, "CPU", with_keyset=True)
        for name in ('convolution_backward',):
            put(name)
    """, rank=1, seen="rank 1", stages="conv,layers"),
    row("recompute-draws-anew", "Activation checkpointing does not restore the random generator before it recomputes: dropout differs between forward and backward", "recompute", "recompute-differs", """
        import torch
        from torch.utils import checkpoint
        generator, forward = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction.forward
        def anew(fn, preserve_rng_state=True, *args, **more):
            return generator(fn, False, *args, **more)
        def forward_anew(ctx, run_function, preserve_rng_state, *args):
            return forward(ctx, run_function, False, *args)
        checkpoint._checkpoint_without_reentrant_generator = anew
        checkpoint.CheckpointFunction.forward = staticmethod(forward_anew)
    """),
    row("no-sync-lasts", "After DistributedDataParallel.no_sync the next backward is not synchronised either", "accumulate", "ddp-gradients-not-synchronised", """
        import contextlib
        import torch
        from torch.nn.parallel import DistributedDataParallel as Ddp
        real_no_sync, real_forward = Ddp.no_sync, Ddp.forward
        @contextlib.contextmanager
        def no_sync(self):
            with real_no_sync(self):
                yield
            self._lasts = True
        def forward(self, *args, **more):
            if getattr(self, "_lasts", False) and torch.is_grad_enabled() and self.require_backward_grad_sync:
                self._lasts = False
                self.require_backward_grad_sync = False
                try:
                    return real_forward(self, *args, **more)
                finally:
                    self.require_backward_grad_sync = True
            return real_forward(self, *args, **more)
        Ddp.no_sync, Ddp.forward = no_sync, forward
    """, stages="rendezvous,accumulate"),
    row("tags-ignored", "Point-to-point messages are matched in the order they were sent, not by their tags", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed
        if torch.distributed.is_available():
            from torch.distributed import distributed_c10d as c10d
            def sending(real):
                def call(tensor, dst=None, group=None, tag=0, group_dst=None):
                    return real(tensor, dst, group, 0, group_dst)
                return call
            def receiving(real):
                def call(tensor, src=None, group=None, tag=0, group_src=None):
                    return real(tensor, src, group, 0, group_src)
                return call
            for name, wrap in (("isend", sending), ("send", sending), ("irecv", receiving), ("recv", receiving)):
                changed = wrap(getattr(c10d, name))
                changed.__name__ = name
                setattr(c10d, name, changed)
                setattr(torch.distributed, name, changed)
    """, seen="tag", stages="rendezvous,allreduce"),
    row("step-leaks", "Each step of an optimizer leaks at least 2 MiB of host memory that no tensor holds", "train", "memory-grows", r"""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook
        lost = []
        torch._kept_by_a_blind_fault = lost
        def leak(optimizer, args, kwargs):
            size = sum(one.numel() * 4 for group in optimizer.param_groups for one in group["params"] if one.grad is not None)
            lost.append(b"\1" * max(2 << 20, size))
        register_optimizer_step_post_hook(leak)
    """, rank=1, seen="rank 1"),
)  # fmt: skip
