"""The seventeen that are opened after their first result."""

from __future__ import annotations

from smoke.faults.means import variables
from smoke.faults.row import Fault
from smoke.faults.short import at_operator, row

ROWS: tuple[Fault, ...] = (
    row("wrong-once-it-is-warm", "One in 30 products of one rank has a wrong bit, beginning 20 s after its start (a core that fails once it is hot)", "stress", "silent-data-corruption", at_operator("mm", """
            import time
            state = torch.__dict__.setdefault("_since", [time.monotonic(), 0])
            if found.numel() > 500 and time.monotonic() > state[0] + 20:
                state[1] += 1
                if state[1] % 30 == 0:
                    found.view(-1)[found.numel() // 3] *= 1.001
    """), rank=1, seen="rank 1", stages=""),
    row("exp-wrong-in-a-range", "exp of float32 between -9.5 and -9 is 0.2 % too large (a wrong entry of a table)", "layers", "device-computes-wrong", at_operator("exp", """
            if found.dtype == torch.float32:
                found = torch.where((given[0] > -9.5) & (given[0] < -9), found + found / 512, found)
    """)),
    row("rsqrt-wrong-at-the-tail", "rsqrt of more than 1000 numbers leaves what is beyond the last eight of a vector half as exact", "layers", "device-computes-wrong", at_operator("rsqrt", """
            rest = found.numel() % 8
            if found.dtype == torch.float32 and found.numel() > 1000 and rest and found.is_contiguous():
                found.view(-1)[-rest:] *= 1.0005
    """)),
    row("long-rows-not-sorted", "sort of rows of more than 4,096 leaves two neighbours in the wrong order", "layers", "device-computes-wrong", at_operator("sort.stable", """
            values, places = found
            if values.dim() and values.shape[-1] > 4096:
                for one in found:
                    one[..., 4095:4097] = one[..., 4095:4097].flip(-1).clone()
    """)),
    row("odd-bytes-copied-short", "A copy of bytes from an odd place and of an odd length lacks its last byte", "memory", "memory-corrupts", """
        import torch
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_fault = held
        import warnings
        kernel = torch.library.get_kernel("aten::copy_", "CPU")
        def copied(keys, into, source, *more, **named):
            if not isinstance(source, torch.Tensor):
                source = torch.scalar_tensor(source, dtype=into.dtype)
            found = kernel.call_boxed(keys, into, source, *more, **named)
            if source.dtype in (torch.uint8, torch.int8) and source.storage_offset() % 2 and source.dim() == 1 and source.numel() % 2 and source.numel() > 16:
                into[-1:].zero_()
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.impl("copy_", copied, "CPU", with_keyset=True)
    """, stages="memory,layers"),
    row("collisions-lost", "Where more than 500 numbers are added to one place (index_add), every hundredth is lost", "layers", "device-computes-wrong", """
        import torch
        import warnings
        held = torch.library.Library("aten", "IMPL")
        torch._kept_by_a_fault = held
        kernel = torch.library.get_kernel("aten::index_add", "CPU")
        def added(keys, one, dim, index, source, **more):
            if index.numel() > 500 and int(torch.bincount(index).max()) > 500:
                kept = torch.arange(index.numel()) % 100 != 7
                index, source = index[kept], source.index_select(dim, kept.nonzero()[:, 0])
            return kernel.call_boxed(keys, one, dim, index, source, **more)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.impl("index_add", added, "CPU", with_keyset=True)
    """),
    row("bfloat16-turned-product", "A bfloat16 product whose second factor is transposed has a wrong last column where it has more than 100", "stress", "gemm-wrong", at_operator("mm", """
            if found.dtype == torch.bfloat16 and given[1].stride(0) == 1 and found.shape[1] > 100:
                found[:, -1] = found[:, -2]
    """), stages="gemm,stress,layers"),
    row("softmax-changes-what-it-takes", "softmax leaves in its input's last row what it took off", "layers", "layer-wrong", at_operator("_softmax", """
            with torch.no_grad():
                if given[0].dim() > 1 and given[0].shape[-1] > 4:
                    given[0].detach()[-1] -= given[0].detach()[-1].amax(-1, keepdim=True)
    """)),
    row("clamp-swallows-nan", "clamp makes of what is no number its lower bound", "layers", "device-computes-wrong", at_operator("clamp", """
            if found.is_floating_point() and len(given) > 1 and given[1] is not None:
                found = torch.where(given[0].isnan(), torch.full_like(found, float(given[1])), found)
    """)),
    row("stalls-now-and-then", "One rank stands still for 150 ms at each 25th step of an optimizer (a collection, a look at the disk)", "stragglers", "straggler-held-back", """
        import time
        import torch
        steps = [0]
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            inner = kind.step
            def stalled(self, *args, inner=inner, **more):
                steps[0] += 1
                if steps[0] % 25 == 0:
                    time.sleep(0.15)
                return inner(self, *args, **more)
            kind.step = stalled
    """, rank=1, seen="rank 1", stages=""),
    row("slower-the-longer-it-runs", "One rank's products take 1 % longer with each second that it has run", "stragglers", "straggler-compute", """
        import time
        import torch
        real, since = torch.matmul, time.monotonic()
        def spent(real):
            def slow(*args, **more):
                began = time.perf_counter()
                found = real(*args, **more)
                until = began + (time.perf_counter() - began) * (1 + 0.01 * (time.monotonic() - since))
                while time.perf_counter() < until:
                    pass
                return found
            return slow
        for owner, name in ((torch, "matmul"), (torch, "mm"), (torch.Tensor, "__matmul__"), (torch.nn.functional, "linear")):
            setattr(owner, name, spent(getattr(owner, name)))
    """, rank=1, seen="rank 1", stages=""),
    row("workers-slower-than-their-rank", "One rank's workers of a DataLoader take 30 ms more for a batch; the rank itself loads as fast as the others", "stragglers", "straggler-loading", """
        import time
        from torch.utils.data import get_worker_info
        from torch.utils.data._utils import fetch
        real = fetch._MapDatasetFetcher.fetch
        def slow(self, index):
            if get_worker_info() is not None:
                time.sleep(0.03)
            return real(self, index)
        fetch._MapDatasetFetcher.fetch = slow
    """, rank=1, when="torch.utils.data", seen="rank 1", stages="device,dataloader,rendezvous,allreduce,stragglers"),
    row("mapped-pages-are-empty", "What is mapped of a checkpoint (mmap=True) is zeros from 4 MiB on (pages that a network file system has not fetched)", "checkpoint", "checkpoint-damaged", """
        import torch
        real = torch.load
        def load(*args, **more):
            found = real(*args, **more)
            def emptied(held):
                if isinstance(held, torch.Tensor) and held.numel() * held.element_size() > 1 << 22:
                    held = held.clone()
                    held.view(-1)[(1 << 22) // held.element_size():] = 0
                    return held
                return {name: emptied(one) for name, one in held.items()} if type(held) is dict else held
            return emptied(found) if more.get("mmap") else found
        torch.load = load
    """),
    row("large-draws-repeat", "randn of more than 65,536 numbers gives its first 16 once more after 65,536 (an offset that is not counted on)", "device", "random-numbers-wrong", """
        import torch
        real = torch.Tensor.normal_
        def spoiled(found):
            if isinstance(found, torch.Tensor) and found.numel() > 65552 and found.is_contiguous():
                with torch.no_grad():
                    flat = found.view(-1)
                    flat[65536:65552] = flat[:16]
            return found
        def wrapped(real):
            return lambda *args, **more: spoiled(real(*args, **more))
        for owner, name in ((torch, "randn"), (torch.Tensor, "normal_"), (torch, "normal"), (torch, "randn_like")):
            setattr(owner, name, wrapped(getattr(owner, name)))
    """, stages="device,layers"),
    row("activations-narrowed", "A plug-in left a hook that keeps activations for the way back in bfloat16", "device", "torch-setting-changed", """
        import torch
        def pack(value):
            return value.bfloat16() if value.dtype == torch.float32 and value.is_leaf is False else value
        torch._kept_by_a_fault = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value.float() if value.dtype == torch.bfloat16 else value)
        torch._kept_by_a_fault.__enter__()
    """),
    row("mkl-of-old-processors", "MKL_CBWR=COMPATIBLE, left by somebody, keeps MKL from the CPU's vector instructions", "device", "torch-setting-changed", inject=variables(MKL_CBWR="COMPATIBLE"), means="environment", stages="device,gemm"),
    row("infs-in-later-gradients", "unscale_ looks for an inf in the first eight gradients of a group alone", "amp-fp16", "scaler-never-skips", """
        import torch
        real = torch._amp_foreach_non_finite_check_and_unscale_
        def unscale(grads, found, inverse):
            real(grads[:8], found, inverse)
            if len(grads) > 8:
                real(grads[8:], torch.zeros_like(found), inverse)
        torch._amp_foreach_non_finite_check_and_unscale_ = unscale
    """),)  # fmt: skip
