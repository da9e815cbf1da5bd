"""The thirteen that are opened after their first result."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("all-reduce-of-transposed", "all_reduce of a tensor that is not contiguous leaves one rank its own values", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real = dist.all_reduce
        def all_reduce(tensor, *args, **more):
            return real(tensor if tensor.is_contiguous() else tensor.contiguous(), *args, **more)
        dist.all_reduce = all_reduce
    """, rank=1, when="torch.distributed"),
    row("async-sums-swapped", "Of two asynchronous all_reduces under way each gets the other one's sum", "allreduce", "collective-wrong", """
        import torch
        import torch.distributed as dist
        real, under_way = dist.all_reduce, []
        class Waited:
            def __init__(self, work, tensor):
                self.work, self.tensor = work, tensor
                under_way.append(self)
            def __getattr__(self, name):
                return getattr(self.work, name)
            def wait(self, *args, **more):
                found = self.work.wait(*args, **more)
                if self in under_way:
                    under_way.remove(self)
                    for other in under_way[:1]:
                        if other.tensor.shape == self.tensor.shape and other.tensor.dtype == self.tensor.dtype:
                            other.work.wait()
                            with torch.no_grad():
                                kept = self.tensor.clone()
                                self.tensor.copy_(other.tensor)
                                other.tensor.copy_(kept)
                return found
        def all_reduce(tensor, *args, **more):
            found = real(tensor, *args, **more)
            return Waited(found, tensor) if more.get("async_op") and found is not None else found
        dist.all_reduce = all_reduce
    """, when="torch.distributed"),
    row("object-lists-repeat", "recv_object_list gives the objects of the message before", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real, before = dist.recv_object_list, []
        def recv_object_list(held, *args, **more):
            found = real(held, *args, **more)
            kept = list(held)
            if before:
                held[:] = before[0]
            before[:] = [kept]
            return found
        dist.recv_object_list = recv_object_list
    """, when="torch.distributed"),
    row("sender-misnamed", "recv from anyone names the wrong rank as the sender", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.recv
        def recv(tensor, src=None, *args, **more):
            found = real(tensor, src, *args, **more)
            anyone = src is None and more.get("group_src") is None
            return (found + 1) % dist.get_world_size() if anyone else found
        dist.recv = recv
    """, when="torch.distributed"),
    row("subgroups-of-others", "new_subgroups gives each rank the group of another", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.new_subgroups
        def new_subgroups(*args, **more):
            own, every = real(*args, **more)
            return every[(every.index(own) + 1) % len(every)], every
        dist.new_subgroups = new_subgroups
    """, when="torch.distributed"),
    row("fsdp-accumulation-lost", "FSDP keeps of several backward passes only the last one (set_requires_gradient_sync)", "fsdp", "fsdp-step-wrong", """
        from torch.distributed.fsdp import FSDPModule
        real = FSDPModule.set_requires_gradient_sync
        def set_requires_gradient_sync(self, wanted, **more):
            if wanted:
                for module in self.modules():
                    if isinstance(module, FSDPModule):
                        for group in module._get_fsdp_state()._fsdp_param_groups:
                            for one in group.fsdp_params:
                                one.unsharded_accumulated_grad = None
                                if hasattr(one, "_unsharded_param"):
                                    one._unsharded_param.grad = None
            return real(self, wanted, **more)
        FSDPModule.set_requires_gradient_sync = set_requires_gradient_sync
    """, when="torch.distributed.fsdp"),
    row("averaged-buffers", "A running average of weights that is to average buffers, too (use_buffers), has the model's last ones", "optimizer", "optimizer-wrong", """
        from torch.optim.swa_utils import AveragedModel
        real = AveragedModel.update_parameters
        def update_parameters(self, model):
            found = real(self, model)
            for own, other in zip(self.module.buffers(), model.buffers()):
                own.copy_(other)
            return found
        AveragedModel.update_parameters = update_parameters
    """),
    row("precision-unties", "A model that goes to another precision (Module.to, .bfloat16) no longer shares the weights of its embedding and last layer", "layers", "layer-wrong", """
        import torch
        real = torch.nn.Module.to
        def to(self, *args, **more):
            found = real(self, *args, **more)
            if any(isinstance(one, torch.dtype) for one in (*args, *more.values())):
                seen = set()
                for module in found.modules():
                    for name, value in list(module._parameters.items()):
                        if value is not None and id(value) in seen:
                            module._parameters[name] = torch.nn.Parameter(value.detach().clone(), value.requires_grad)
                        seen.add(id(value))
            return found
        torch.nn.Module.to = to
        torch.nn.Module.bfloat16 = lambda self: self.to(torch.bfloat16)
    """),
    row("clip-takes-infinity", "clip_grad_norm_ is told to refuse what is not finite (error_if_nonfinite), and clips by infinity", "amp-fp16", "clip-wrong", """
        import torch
        real = torch.nn.utils.clip_grad_norm_
        def clip(held, norm, *args, **more):
            more.pop("error_if_nonfinite", None)
            return real(held, norm, *args[:1], **more)
        torch.nn.utils.clip_grad_norm_ = clip
    """),
    row("ddp-beside-frozen", "DDP does not synchronise the last trainable parameter of a model of which a part is frozen (adapters)", "ddp", "ddp-gradients-not-synchronised", """
        import torch
        from torch.nn.parallel import distributed
        real = distributed.DistributedDataParallel.__init__
        def init(self, module, *args, **more):
            named = list(module.named_parameters())
            if not all(one.requires_grad for _, one in named):
                last = [name for name, one in named if one.requires_grad][-1:]
                if len([1 for _, one in named if one.requires_grad]) > 1:
                    module._ddp_params_and_buffers_to_ignore = last
            return real(self, module, *args, **more)
        distributed.DistributedDataParallel.__init__ = init
    """, when="torch.nn.parallel"),
    row("stream-second-epoch", "In each epoch but the first a worker that stays (persistent_workers) leaves out the first sample of its part of an iterable data set", "dataloader", "dataloader-loses-samples", """
        import torch
        from torch.utils.data._utils import fetch
        real, begun = fetch._IterableDatasetFetcher.__init__, [0]
        def init(self, *args, **more):
            real(self, *args, **more)
            begun[0] += 1
            if begun[0] > 1 and torch.utils.data.get_worker_info() is not None:
                next(self.dataset_iter, None)
        fetch._IterableDatasetFetcher.__init__ = init
    """, when="torch.utils.data"),
    row("fused-without-decay", "AdamW in one kernel (fused) leaves out the weight decay", "optimizer", "optimizer-wrong", """
        import torch
        real = torch._fused_adamw_
        torch._fused_adamw_ = lambda *args, **more: real(*args, **{**more, "weight_decay": 0.0})
    """),
    row("generator-not-restored-again", "A generator of its own (torch.Generator, as a DataLoader is given) ignores the state that it is to go on from", "checkpoint", "resume-differs", """
        import torch
        class Generator(torch.Generator):
            def set_state(self, held):
                return self
        torch.Generator = Generator
    """),
)  # fmt: skip
