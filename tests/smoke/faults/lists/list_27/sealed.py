"""The ten that stay sealed until the end."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("nesterov-ignored", "SGD ignores nesterov=True", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.SGD.__init__
        def made(self, *args, **more):
            real(self, *args, **more)
            for group in self.param_groups:
                group["nesterov"] = False
        torch.optim.SGD.__init__ = made
    """),
    row("maximize-ignored", "Adam minimises what it is told to maximise", "optimizer", "optimizer-wrong", """
        import torch
        real = torch.optim.Adam.__init__
        def made(self, *args, **more):
            real(self, *args, **more)
            for group in self.param_groups:
                group["maximize"] = False
        torch.optim.Adam.__init__ = made
    """),
    row("freezing-stops-at-children", "requires_grad_(False) of a module freezes its own weights, and not those of what it holds", "layers", "autograd-wrong", """
        import torch
        def requires_grad_(self, requires_grad=True):
            for one in self.parameters(recurse=False):
                one.requires_grad_(requires_grad)
            return self
        torch.nn.Module.requires_grad_ = requires_grad_
    """),
    row("tied-weights-twice", "parameters() of a model gives a weight that two layers share twice", "layers", "autograd-wrong", """
        import torch
        real = torch.nn.Module.named_parameters
        def named_parameters(self, prefix="", recurse=True, remove_duplicate=True):
            return real(self, prefix, recurse, remove_duplicate=False)
        torch.nn.Module.named_parameters = named_parameters
    """, stages="layers,optimizer,checkpoint"),
    row("apply-stops-at-children", "apply() of a model (an initialisation of its own) reaches its children, and not theirs", "layers", "autograd-wrong", """
        import torch
        def apply(self, function):
            for one in (*self.children(), self):
                function(one)
            return self
        torch.nn.Module.apply = apply
    """),
    row("masks-over-the-batch", "masked_fill by a mask that is spread over a batch leaves the last of the batch as it was", "layers", "device-computes-wrong", """
        import torch
        real = torch.Tensor.masked_fill
        def masked_fill(self, mask, value):
            found = real(self, mask, value)
            if self.dim() > 2 and self.shape[0] > 1 and (mask.dim() < self.dim() or mask.shape[0] == 1):
                found = torch.cat([found[:-1], self[-1:]])
            return found
        torch.Tensor.masked_fill = masked_fill
    """),
    row("attention-scale-ignored", "Attention ignores the scale that it is given (scale=)", "layers", "layer-wrong", """
        import torch
        real = torch.nn.functional.scaled_dot_product_attention
        def attention(*args, scale=None, **more):
            return real(*args, **more)
        torch.nn.functional.scaled_dot_product_attention = attention
    """),
    row("subset-in-order", "SubsetRandomSampler gives its part in order", "dataloader", "dataloader-not-shuffled", """
        import torch
        torch.utils.data.SubsetRandomSampler.__iter__ = lambda self: iter(self.indices)
    """, when="torch.utils.data.sampler"),
    row("shared-memory-private", "share_memory_() leaves a tensor where it was: what the training writes into it its workers never see (a curriculum)", "dataloader", "dataloader-corrupts", """
        import torch
        torch.Tensor.share_memory_ = lambda self: self
    """),
    row("children-keep-buffers", "DDP sends rank 0's buffers of the model itself and of its layers, and not those further down", "buffers", "buffers-not-broadcast", """
        import torch
        kind = torch.nn.parallel.DistributedDataParallel
        real = kind.__init__
        def made(self, module, *args, **more):
            deep = [name for name, _ in module.named_buffers() if name.count(".") > 1]
            if deep:
                kind._set_params_and_buffers_to_ignore_for_model(module, deep)
            real(self, module, *args, **more)
        kind.__init__ = made
    """, when="torch.nn.parallel.distributed", stages="ddp,buffers"),
)  # fmt: skip
