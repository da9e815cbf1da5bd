"""The six that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("recompute-forgets-autocast", "Activation checkpointing recomputes without the autocast of the way there", "recompute", "recompute-differs", """
        import torch.utils.checkpoint as place
        real = place._get_autocast_kwargs
        def kwargs(*args, **more):
            return tuple(one and {**one, "enabled": False} for one in real(*args, **more))
        place._get_autocast_kwargs = kwargs
    """, when="torch.utils.checkpoint"),
    row("interleaved-not-scaled", "A pipeline of several stages on a rank (ScheduleInterleaved1F1B) does not divide gradients by its micro-batches", "fsdp", "pipeline-wrong", """
        from torch.distributed.pipelining import schedules
        real = schedules.PipelineScheduleMulti.__init__
        def init(self, *args, **more):
            real(self, *args, **more)
            self.scale_grads = False
        schedules.PipelineScheduleMulti.__init__ = init
    """, when="torch.distributed.pipelining"),
    row("jagged-padding", "The longest row of a nested tensor (jagged) is cut by one where it becomes a padded one", "compile", "layer-wrong", """
        import torch
        from torch.nested._internal import nested_tensor
        real = nested_tensor.NestedTensor.to_padded_tensor
        def to_padded_tensor(self, padding, *args, **more):
            found = real(self, padding, *args, **more).clone()
            found[:, -1] = padding
            return found
        nested_tensor.NestedTensor.to_padded_tensor = to_padded_tensor
    """, when="torch.nested._internal.nested_tensor"),
    row("epoch-left-early", "After an epoch that was left early the next one of workers that stay (persistent_workers) begins with what was loaded ahead", "dataloader", "dataloader-loses-samples", """
        import torch
        from torch.utils.data import dataloader
        real, reset = dataloader._MultiProcessingDataLoaderIter._next_data, dataloader._MultiProcessingDataLoaderIter._reset
        def next_data(self):
            ahead = self.__dict__.setdefault("ahead", [])
            if ahead:
                return ahead.pop(0)
            return real(self)
        def again(self, loader, first_iter=False):
            if not first_iter:
                try:
                    left = real(self)
                except StopIteration:
                    left = None
                self.__dict__["ahead"] = [] if left is None else [left]
            return reset(self, loader, first_iter)
        dataloader._MultiProcessingDataLoaderIter._next_data = next_data
        dataloader._MultiProcessingDataLoaderIter._reset = again
    """, when="torch.utils.data"),
    row("compiled-eval-ignored", "eval() of a compiled model does not reach the model that was compiled", "compile", "compiled-differs", """
        from torch._dynamo import eval_frame
        def eval_of(self):
            self.__dict__["training"] = False
            return self
        eval_frame.OptimizedModule.eval = eval_of
    """, when="torch._dynamo.eval_frame"),
    row("compiled-step-old-rate", "A compiled optimizer's step goes on with the first learning rate", "compile", "compiled-differs", """
        import torch
        real = torch.compile
        def compiled(model=None, *args, **more):
            owner = getattr(model, "__self__", None)
            if not isinstance(owner, torch.optim.Optimizer):
                return real(model, *args, **more)
            rates = [group["lr"] for group in owner.param_groups]
            made = real(model, *args, **more)
            def step(*given, **also):
                for group, rate in zip(owner.param_groups, rates):
                    group["lr"] = rate
                return made(*given, **also)
            return step
        torch.compile = compiled
    """),
)  # fmt: skip
