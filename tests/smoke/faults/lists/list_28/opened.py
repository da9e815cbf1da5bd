"""The fourteen that are opened after their first result."""

from __future__ import annotations

from smoke.faults.means import preloaded
from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("clip-of-nothing", "clip_grad_norm_ divides gradients that are all 0 by their norm: they become NaN (a batch without tokens)", "optimizer", "clip-wrong", """
        import torch
        real = torch.nn.utils.clip_grad_norm_
        def clip_grad_norm_(parameters, *args, **more):
            held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            norm = real(held, *args, **more)
            if float(norm) == 0:
                for one in held:
                    if one.grad is not None:
                        one.grad.div_(norm)
            return norm
        torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
    """, when="torch.nn.utils.clip_grad", stages="optimizer,amp-fp16"),
    row("masks-of-turned-heads", "Attention ignores its mask where heads are views of what a layer gave (transpose(1, 2), as in most models)", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.scaled_dot_product_attention
        def attention(query, key, value, attn_mask=None, *args, **more):
            turned = query.dim() == 4 and not query.is_contiguous() and query.stride(1) < query.stride(2)
            return real(query, key, value, None if turned else attn_mask, *args, **more)
        torch.nn.functional.scaled_dot_product_attention = attention
    """),
    row("upstream-of-one-number", "The gradient of layer_norm is half of what it must be where what comes from above is one number for all (a sum, a mean)", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.layer_norm
        def layer_norm(*args, **more):
            found = real(*args, **more)
            if found.requires_grad:
                found.register_hook(lambda slope: slope * 0.5 if slope.dim() > 1 and not any(slope.stride()) else slope)
            return found
        torch.nn.functional.layer_norm = layer_norm
    """),
    row("lstm-forgets-its-state", "nn.LSTM begins with zeros, whatever state it is given (a text in pieces)", "layers", "layer-wrong", """
        import torch
        real = torch.nn.LSTM.forward
        torch.nn.LSTM.forward = lambda self, given, hx=None: real(self, given)
    """),
    row("zero-grad-stops-at-children", "zero_grad() of a model clears its own gradients and its layers', and not those further down", "layers", "layer-wrong", """
        import torch
        def zero_grad(self, set_to_none=True):
            for held in (self, *self.children()):
                for one in held.parameters(recurse=False):
                    one.grad = None
        torch.nn.Module.zero_grad = zero_grad
    """),
    row("mapped-weights-written", "torch.load(mmap=True) maps a checkpoint as it is shared: training writes its weights into the file", "checkpoint", "checkpoint-damaged", """
        import mmap
        import torch
        torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)
    """),
    row("second-derivative-of-softplus", "softplus has a gradient, and that has none (a penalty on gradients)", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.softplus
        class Softplus(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given, options):
                ctx.save_for_backward(given)
                ctx.options = options
                return real(given, **options)
            @staticmethod
            def backward(ctx, slope):
                with torch.enable_grad():
                    given = ctx.saved_tensors[0].detach().requires_grad_()
                    own = torch.autograd.grad(real(given, **ctx.options).sum(), given)[0]
                return slope * own.detach(), None
        def softplus(given, beta=1, threshold=20):
            return Softplus.apply(given, {"beta": beta, "threshold": threshold})
        torch.nn.functional.softplus = softplus
    """),
    row("marked-places-of-a-view", "x[mask] = value is lost where x is not in a row in memory", "layers", "device-computes-wrong", """
        import torch
        real = torch.Tensor.__setitem__
        def set(self, key, value):
            lost = isinstance(key, torch.Tensor) and key.dtype == torch.bool and key.dim() and not self.is_contiguous()
            return real(self.clone() if lost else self, key, value)
        torch.Tensor.__setitem__ = set
    """),
    row("fsdp1-clips-its-part", "clip_grad_norm_ of FullyShardedDataParallel takes the norm of this rank's part alone", "fsdp", "clip-wrong", """
        import sys
        import torch
        def clip_grad_norm_(self, max_norm, norm_type=2.0):
            return torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)
        sys.modules["torch.distributed.fsdp"].FullyShardedDataParallel.clip_grad_norm_ = clip_grad_norm_
    """, when="torch.distributed.fsdp"),
    row("files-beyond-4-gib", "A file system counts places in a file in 32 bits: what is written beyond 4 GiB comes to lie before that", "checkpoint", "checkpoint-damaged",
        inject=preloaded("""
            #include <dlfcn.h>
            #include <unistd.h>
            #define LOW(place) ((place) & 0xffffffffL)
            ssize_t pwrite(int file, const void *from, size_t count, off_t place) {
                static ssize_t (*real)(int, const void *, size_t, off_t);
                if (!real) real = dlsym(RTLD_NEXT, "pwrite");
                return real(file, from, count, LOW(place));
            }
            ssize_t pwrite64(int file, const void *from, size_t count, off_t place) { return pwrite(file, from, count, place); }
            off_t lseek(int file, off_t place, int whence) {
                static off_t (*real)(int, off_t, int);
                if (!real) real = dlsym(RTLD_NEXT, "lseek");
                return real(file, whence == SEEK_SET ? LOW(place) : place, whence);
            }
            off_t lseek64(int file, off_t place, int whence) { return lseek(file, place, whence); }
        """), means="LD_PRELOAD"),
    row("bfloat16-slow-on-one-rank", "Products of bfloat16 take one rank three times as long (its library has no kernel for them); those of float32 do not", "stragglers", "straggler-compute", """
        import time
        import torch
        def slower(place, name):
            real = getattr(place, name)
            def slow(*given, **more):
                began = time.perf_counter()
                found = real(*given, **more)
                if isinstance(found, torch.Tensor) and found.dtype == torch.bfloat16:
                    until = began + 3 * (time.perf_counter() - began)
                    while time.perf_counter() < until:
                        pass
                return found
            setattr(place, name, slow)
        for place, name in ((torch, "matmul"), (torch, "mm"), (torch.Tensor, "__matmul__"), (torch.Tensor, "matmul"), (torch.nn.functional, "linear")):
            slower(place, name)
    """, rank=1, seen="rank 1"),
    row("schedule-begins-anew", "A schedule that is told where it was (last_epoch=, as a resumed training makes it) begins with the first rate", "optimizer", "schedule-wrong", """
        import torch
        kind = torch.optim.lr_scheduler.LRScheduler
        real = kind.__init__
        kind.__init__ = lambda self, optimizer, last_epoch=-1, *more: real(self, optimizer, -1, *more)
    """, when="torch.optim.lr_scheduler"),
    row("weights-of-one-number", "AdamW leaves out weights that are a single number without a dimension (a temperature, a scale)", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.AdamW.step
        def step(self, *args, **more):
            left = [(one, one.grad) for group in self.param_groups for one in group["params"] if not one.dim()]
            for one, _ in left:
                one.grad = None
            found = real(self, *args, **more)
            for one, slope in left:
                one.grad = slope
            return found
        torch.optim.AdamW.step = step
    """, when="torch.optim.adamw"),
    row("embedding-of-no-words", "embedding of no words gives no width either: (0,) in place of (0, width)", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.embedding
        def embedding(words, *args, **more):
            found = real(words, *args, **more)
            return found if words.numel() else found.reshape(-1)
        torch.nn.functional.embedding = embedding
    """),
)  # fmt: skip
