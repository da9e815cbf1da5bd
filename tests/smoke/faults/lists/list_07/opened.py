"""Twelve faults that were opened after their first result."""

from __future__ import annotations

from smoke.faults.short import row

ROWS = (
    row("vocabulary-cut", "cross_entropy takes the first 4096 words of a larger vocabulary alone", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.cross_entropy
        def cross_entropy(scores, answers, *args, **more):
            if scores.dim() == 2 and scores.shape[1] > 4096:
                scores = torch.cat((scores[:, :4096], torch.full_like(scores[:, 4096:], -1e4)), 1)
            return real(scores, answers, *args, **more)
        torch.nn.functional.cross_entropy = cross_entropy
    """, seen="cross_entropy"),
    row("interpolate-corners", "interpolate aligns corners where it was not told to", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.interpolate
        def interpolate(given, size=None, scale_factor=None, mode="nearest", align_corners=None, **more):
            return real(given, size, scale_factor, mode, True if mode in ("bilinear", "bicubic") else align_corners, **more)
        torch.nn.functional.interpolate = interpolate
    """, seen="interpolate|Upsample"),
    row("gather-gradient-once", "The gradient of gather keeps one of several shares of a place", "layers", "device-computes-wrong", """
        import torch
        real = torch.gather
        class Gather(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given, dim, index):
                ctx.save_for_backward(index)
                ctx.dim, ctx.like = dim, given
                return real(given, dim, index)
            @staticmethod
            def backward(ctx, grad):
                return torch.zeros_like(ctx.like).scatter_(ctx.dim, ctx.saved_tensors[0], grad), None, None
        def gather(given, dim, index, **more):
            return Gather.apply(given, dim, index) if given.requires_grad else real(given, dim, index, **more)
        torch.gather = torch.Tensor.gather = gather
    """, seen="gather"),
    row("attention-long-wrong", "Attention leaves out the keys after the 512th", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.scaled_dot_product_attention
        def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
            if attn_mask is None and not is_causal and key.shape[-2] > 512:
                key, value = key[..., :512, :], value[..., :512, :]
            return real(query, key, value, attn_mask, dropout_p, is_causal, **more)
        torch.nn.functional.scaled_dot_product_attention = attention
    """, seen="attention"),
    row("ema-copies", "A running average of weights is the last weights", "optimizer", "optimizer-wrong", """
        import torch
        import torch.optim.swa_utils as averages
        def update(self, model):
            with torch.no_grad():
                for kept, now in zip(self.module.parameters(), model.parameters()):
                    kept.copy_(now)
            self.n_averaged += 1
        averages.AveragedModel.update_parameters = update
    """, seen="AveragedModel"),
    row("loader-seeds-repeat", "Workers get the same seed in each epoch: each epoch has the augmentation of the last", "dataloader",
        "dataloader-seeds-repeat", """
        import torch.utils.data.dataloader as loading
        real = loading._BaseDataLoaderIter.__init__
        def init(self, loader):
            real(self, loader)
            if loader.generator is not None:
                self._base_seed = 1000003 * loader.generator.initial_seed()
        loading._BaseDataLoaderIter.__init__ = init
    """, when="torch.utils.data.dataloader"),
    row("spawn-broken", "multiprocessing would spawn workers with an interpreter that is gone", "dataloader", "spawn-broken", """
        import multiprocessing.spawn
        multiprocessing.spawn.set_executable("/opt/gone/bin/python3")
    """, seen="/opt/gone"),
    row("monitored-barrier-returns", "monitored_barrier returns before all ranks have come", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        dist.monitored_barrier = lambda *args, **more: None
    """, when="torch.distributed", seen="monitored_barrier"),
    row("ddp-stops-after-ten", "After ten steps of a model DDP synchronises no gradients any more", "ddp-amp", "ddp-ranks-drift", """
        import torch
        import torch.distributed as dist
        import torch.nn.parallel.distributed as parallel
        real = parallel.DistributedDataParallel.__init__
        def init(self, *args, **more):
            real(self, *args, **more)
            steps = [0]
            def hook(state, bucket):
                steps[0] += bucket.is_last()
                if steps[0] > 10:
                    kept = torch.futures.Future()
                    kept.set_result(bucket.buffer())
                    return kept
                work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
                return work.get_future().then(lambda done: done.value()[0])
            self.register_comm_hook(None, hook)
        parallel.DistributedDataParallel.__init__ = init
    """, when="torch.nn.parallel.distributed", stages=""),
    row("threads-grow", "Each step of an optimizer leaves a thread behind", "train", "threads-grow", """
        import threading
        import torch
        real = torch.optim.AdamW.step
        def step(self, *args, **more):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            return real(self, *args, **more)
        torch.optim.AdamW.step = step
    """),
    row("rank-does-not-end", "A thread that waits for ever keeps one rank from ending", "device", "rank-does-not-end", """
        import threading
        threading.Thread(target=threading.Event().wait).start()
    """, rank=1, seen="rank 1"),
    row("compiled-tanh", "The compiler's code leaves out tanh", "compile", "compiled-differs", """
        import torch._inductor.codegen.cpp as cpp
        cpp.CppOverrides.tanh = staticmethod(lambda x: f"decltype({x})({x})")
        cpp.CppVecOverrides.tanh = staticmethod(lambda x: f"{x}")
    """, when="torch._inductor.codegen.cpp"),
)  # fmt: skip
