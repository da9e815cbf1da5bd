"""The faults that were opened after their first result."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("scale-read-late", "In the step in which the scale is to grow GradScaler divides the gradients by the new scale, not by the one that multiplied the loss", "amp-fp16", "scaler-unscale-wrong", """
        import torch
        real = torch.amp.GradScaler._unscale_grads_
        def unscale(self, optimizer, inv_scale, found_inf, allow_fp16):
            grows = self._get_growth_tracker() + 1 == self._growth_interval
            return real(self, optimizer, inv_scale / self._growth_factor if grows else inv_scale, found_inf, allow_fp16)
        torch.amp.GradScaler._unscale_grads_ = unscale
    """),
    row("padding-row-learns", "The row of an embedding that stands for padding (padding_idx) gets a gradient like any other", "layers", "layer-wrong", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_fault = held
        kernel = torch.library.get_kernel("aten::embedding_dense_backward", "CPU")
        def wrong(keys, grad, indices, count, padding, by_frequency):
            return kernel.call_boxed(keys, grad, indices, count, -1, by_frequency)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.impl("embedding_dense_backward", wrong, "CPU", with_keyset=True)
    """),
    row("warm-restarts-of-one-length", "CosineAnnealingWarmRestarts takes every cycle for as long as the first (T_mult is ignored)", "optimizer", "schedule-wrong", """
        import torch
        kind = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
        real = kind.__init__
        def __init__(self, optimizer, T_0, T_mult=1, *args, **more):
            real(self, optimizer, T_0, 1, *args, **more)
        kind.__init__ = __init__
    """),
    row("view-offset-lost", "torch.load puts a tensor that was saved as a part of a larger one at the beginning of its memory", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch._utils._rebuild_tensor_v2
        def wrong(storage, storage_offset, *args, **more):
            return real(storage, 0, *args, **more)
        wrong.__module__, wrong.__qualname__, wrong.__name__ = real.__module__, real.__qualname__, real.__name__
        torch._utils._rebuild_tensor_v2 = wrong
    """),
    row("split-by-shares-loses", "random_split by shares (0.5, 0.3, 0.2) leaves out what no share takes whole", "dataloader", "dataloader-loses-samples", """
        import torch
        from torch.utils import data
        real = data.random_split
        def random_split(dataset, lengths, *args, **more):
            parts = real(dataset, lengths, *args, **more)
            if any(isinstance(one, float) for one in lengths):
                for part, share in zip(parts, lengths):
                    part.indices = part.indices[: int(share * len(dataset))]
            return parts
        data.random_split = data.dataset.random_split = random_split
    """),
    row("prefetch-repeats", "A loader that fetches more than two batches ahead for each worker (prefetch_factor) gives its fifth batch twice, the second time in place of the sixth", "dataloader", "dataloader-loses-samples", """
        import torch
        from torch.utils.data import dataloader
        kind = dataloader._MultiProcessingDataLoaderIter
        following = kind._next_data
        def _next_data(self):
            found = following(self)
            if self._prefetch_factor > 2:
                if self._num_yielded == 5:
                    found = self._fifth
                if self._num_yielded == 4:
                    self._fifth = found
            return found
        kind._next_data = _next_data
    """),
    row("rows-summed-in-bfloat16", "Sums over the first dimension of 512 or more rows of bfloat16 are kept in bfloat16, not in float32", "layers", "layer-wrong", """
        import warnings
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_fault = held
        kernel = torch.library.get_kernel("aten::sum.dim_IntList", "CPU")
        def wrong(keys, given, dims=None, keepdim=False, dtype=None):
            found = kernel.call_boxed(keys, given, dims, keepdim, dtype=dtype)
            if given.dtype is torch.bfloat16 and dtype is None and given.dim() == 2 and list(dims or ()) == [0] and given.shape[0] >= 512:
                kept = torch.zeros(given.shape[1], dtype=torch.bfloat16)
                for one in given.detach().unbind(0):
                    kept += one
                found.copy_(kept.view_as(found))
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.impl("sum.dim_IntList", wrong, "CPU", with_keyset=True)
    """),
    row("clipped-in-a-step-hook", "A plug-in has registered a hook before each optimizer's step that clips the gradients to a norm of 1", "optimizer", "optimizer-wrong", """
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook
        def clip(optimizer, args, kwargs):
            torch.nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], 1.0)
        register_optimizer_step_pre_hook(clip)
    """),
    row("compiled-keeps-first-precision", "What torch.compile made for numbers of float32 also takes those of float64, and rounds them (a guard that does not ask for the type)", "compile", "compiled-differs", """
        import functools
        import torch
        real = torch.compile
        def keeping(call):
            first = []
            @functools.wraps(call)
            def kept(*args, **more):
                floats = [one for one in args if isinstance(one, torch.Tensor) and one.is_floating_point()]
                first.extend(one.dtype for one in floats[:1] if not first)
                given = [one.to(first[0]) if any(one is each for each in floats) else one for one in args]
                return call(*given, **more)
            return kept
        def compile(model=None, *args, **more):
            found = real(model, *args, **more)
            if isinstance(model, torch.nn.Module):
                object.__setattr__(found, "forward", keeping(found.forward))
                return found
            return keeping(found) if callable(model) else found
        torch.compile = compile
    """),
    row("order-kept-by-persistent-workers", "A loader with shuffle=True that keeps its workers (persistent_workers) gives each epoch in the order of its first", "dataloader", "dataloader-not-shuffled", """
        import torch
        from torch.utils.data import dataloader
        kind = dataloader._BaseDataLoaderIter
        reset = kind._reset
        def _reset(self, loader, first_iter=False):
            reset(self, loader, first_iter)
            if getattr(loader, "persistent_workers", False) and self._num_workers and self._dataset_kind == dataloader._DatasetKind.Map:
                self._orders = getattr(self, "_orders", None) or list(self._sampler_iter)
                self._sampler_iter = iter(self._orders)
        kind._reset = _reset
    """),
    row("allocations-slow-on-one", "Each new tensor of a MiB or more costs rank 1 two milliseconds more (the kernel compacts memory for huge pages)", "stragglers", "straggler-memory", """
        import warnings
        import time
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_fault = held
        kernel = torch.library.get_kernel("aten::empty.memory_format", "CPU")
        def wrong(keys, *args, **more):
            found = kernel.call_boxed(keys, *args, **more)
            if found.numel() * found.element_size() >= 1 << 20:
                until = time.perf_counter() + 2e-3
                while time.perf_counter() < until:
                    pass
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.impl("empty.memory_format", wrong, "CPU", with_keyset=True)
    """, rank=1, seen="rank 1", stages="rendezvous,stragglers"),
    row("numbers-loaded-as-float32", "torch.load with weights_only=True rounds the numbers that lie beside tensors (a rate, a loss) to float32", "checkpoint", "checkpoint-damaged", """
        import struct
        import torch
        real = torch.load
        def rounded(one):
            if type(one) is float:
                return struct.unpack("f", struct.pack("f", one))[0]
            if type(one) is dict:
                return {name: rounded(value) for name, value in one.items()}
            return [rounded(value) for value in one] if type(one) is list else one
        def load(*args, **more):
            found = real(*args, **more)
            return rounded(found) if more.get("weights_only") in (None, True) else found
        torch.load = torch.serialization.load = load
    """),
    row("causal-from-the-end", "Attention that looks back (is_causal) with more keys than queries lets the last query see all keys, where torch counts from the first", "layers", "layer-wrong", """
        import torch
        functional = torch.nn.functional
        real = functional.scaled_dot_product_attention
        def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
            rows, columns = query.shape[-2], key.shape[-2]
            if is_causal and columns > rows:
                attn_mask, is_causal = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows), False
            return real(query, key, value, attn_mask, dropout_p, is_causal, **more)
        functional.scaled_dot_product_attention = attention
    """),
)  # fmt: skip
