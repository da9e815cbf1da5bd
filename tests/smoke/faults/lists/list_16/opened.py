"""Those that were opened after their first result. Which are sealed was drawn by chance (random.SystemRandom)."""

from __future__ import annotations

import shutil
import time

from smoke.faults.bench import Bench
from smoke.faults.means import loading
from smoke.faults.row import Fault
from smoke.faults.short import row


def cleaned(bench: Bench) -> None:
    """All that is below the directory for temporary files goes as soon as a rank loads."""
    look = loading(1)

    def clean() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if look(bench) is not None:
                for place in bench.folder.glob("torchtune-sys*"):
                    shutil.rmtree(place, ignore_errors=True)
                return
            time.sleep(0.05)

    bench.watchers.append(clean)


ROWS: tuple[Fault, ...] = (
    row("async-save-by-reference", "What is saved beside training (async_save) is not copied first: the checkpoint has what later steps made of it", "checkpoint-sharded",
        "sharded-checkpoint-differs", """
        from torch.distributed.checkpoint import staging, state_dict_saver
        for kind in ("DefaultStager", "BlockingAsyncStager"):
            found = getattr(staging, kind, None)
            if found is not None:
                found.stage = lambda self, state, **more: state
                found.should_synchronize_after_execute = False
        if hasattr(state_dict_saver, "_offload_state_dict_to_cpu"):
            state_dict_saver._offload_state_dict_to_cpu = lambda state, *args, **more: state
    """, when="torch.distributed.checkpoint.state_dict_saver"),
    row("compiled-dropout-repeats", "A compiled model drops the same elements at each call", "compile", "compiled-differs", """
        import torch
        real = torch.compile
        def compiled(model=None, *args, **more):
            made = real(model, *args, **more)
            if model is None:
                return made
            def called(*given, **options):
                with torch.random.fork_rng():
                    torch.manual_seed(1)
                    return made(*given, **options)
            if isinstance(model, torch.nn.Module):
                forward = made.forward
                def seeded(*given, **options):
                    with torch.random.fork_rng():
                        torch.manual_seed(1)
                        return forward(*given, **options)
                made.forward = seeded
                return made
            return called
        torch.compile = compiled
    """),
    row("no-sync-bucket-view", "Where gradients are views of DDP's buckets (gradient_as_bucket_view) no_sync keeps only the last micro-batch", "accumulate", "accumulation-wrong", """
        import torch
        from torch.nn.parallel import DistributedDataParallel as DDP
        real = DDP.forward
        def forward(self, *args, **more):
            if self.gradient_as_bucket_view and not self.require_backward_grad_sync:
                for one in self.module.parameters():
                    one.grad = None
            return real(self, *args, **more)
        DDP.forward = forward
    """),
    row("reentrant-loses-randomness", "Activation checkpointing of the older kind (use_reentrant=True) recomputes with other random numbers", "recompute", "recompute-differs", """
        import torch.utils.checkpoint as kept
        real = kept.checkpoint
        def checkpoint(function, *args, use_reentrant=None, **more):
            if use_reentrant:
                more["preserve_rng_state"] = False
            return real(function, *args, use_reentrant=use_reentrant, **more)
        kept.checkpoint = checkpoint
    """),
    row("autocast-conv-gradient", "Under autocast a convolution's weights get no gradient for their last output channel", "amp-bf16", "amp-diverges", """
        import torch
        import torch.nn.functional as F
        real = torch.conv2d
        class Lost(torch.autograd.Function):
            @staticmethod
            def forward(ctx, weight):
                return weight.view_as(weight)
            @staticmethod
            def backward(ctx, grad):
                grad = grad.clone()
                grad[-1] = 0
                return grad
        def conv2d(given, weight, *args, **more):
            if torch.is_autocast_enabled("cpu") and weight.requires_grad:
                weight = Lost.apply(weight)
            return real(given, weight, *args, **more)
        F.conv2d = torch.conv2d = conv2d
    """),
    row("autocast-attention-mask", "Under autocast attention ignores the mask that it is given", "amp-bf16", "amp-diverges", """
        import torch
        import torch.nn.functional as F
        real = F.scaled_dot_product_attention
        def attention(query, key, value, attn_mask=None, *args, **more):
            if torch.is_autocast_enabled("cpu"):
                attn_mask = None
            return real(query, key, value, attn_mask, *args, **more)
        F.scaled_dot_product_attention = attention
    """),
    row("post-accumulate-hook-lost", "What is to run once a gradient is there (register_post_accumulate_grad_hook, an optimizer in the backward pass) never runs", "layers",
        "autograd-wrong", """
        import torch
        class Handle:
            def remove(self):
                pass
        torch.Tensor.register_post_accumulate_grad_hook = lambda self, hook: Handle()
    """),
    row("adamw-bfloat16-decay", "AdamW leaves the weight decay out where parameters are bfloat16", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.AdamW.step
        def step(self, *args, **more):
            kept = [group["weight_decay"] for group in self.param_groups]
            for group in self.param_groups:
                if any(one.dtype == torch.bfloat16 for one in group["params"]):
                    group["weight_decay"] = 0.0
            found = real(self, *args, **more)
            for group, decay in zip(self.param_groups, kept):
                group["weight_decay"] = decay
            return found
        torch.optim.AdamW.step = step
    """),
    row("host-files-exhausted", "All processes of the host together have as many files open as it allows (ENFILE, fs.file-max) while workers load", "dataloader",
        "nofile-limit-too-low", """
        import errno
        import os
        import multiprocessing.connection
        real = os.pipe
        def pipe():
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        import torch.utils.data
        begin = torch.utils.data.DataLoader.__iter__
        def iterate(self):
            if self.num_workers:
                os.pipe = pipe
            return begin(self)
        torch.utils.data.DataLoader.__iter__ = iterate
    """, seen="fs.file-max|in system"),
    row("scratch-cleaned", "The epilogue of another job removes what this user has in the directory for temporary files while ranks run", "checkpoint", "temporary-files-removed",
        inject=cleaned, means="signal", stages="dataloader,checkpoint", seen="removed")._replace(others={"dataloader": "fail"}),
)  # fmt: skip
