"""The six that stay closed until the end: only their first result counts."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("selective-checkpoint-spoiled", "Activation checkpointing that keeps some results (create_selective_checkpoint_contexts) gives them back halved", "recompute",
        "recompute-differs", """
        import torch
        import torch.utils.checkpoint as kept
        real = kept.create_selective_checkpoint_contexts
        def contexts(*args, **more):
            first, second = real(*args, **more)
            enter = type(second).__enter__
            def begin(self):
                for kept_of_one in self.storage.values():
                    for one in kept_of_one.values() if isinstance(kept_of_one, dict) else kept_of_one:
                        if isinstance(getattr(one, "val", None), torch.Tensor):
                            one.val = one.val * 0.5
                return enter(self)
            second.__class__ = type("Turned", (type(second),), {"__enter__": begin})
            return first, second
        kept.create_selective_checkpoint_contexts = contexts
    """, when="torch.utils.checkpoint"),
    row("clip-leaves-out-bfloat16", "Clipping by the norm counts and clips only the float32 gradients of a model that also has bfloat16 ones", "optimizer", "clip-wrong", """
        import torch
        import torch.nn.utils as utils
        import torch.nn.utils.clip_grad as place
        real = place.clip_grad_norm_
        def clip(parameters, *args, **more):
            held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            held = [one for one in held if one.grad is not None]
            wide = [one for one in held if one.grad.dtype == torch.float32]
            return real(wide or held, *args, **more)
        place.clip_grad_norm_ = utils.clip_grad_norm_ = clip
    """),
    row("batched-receives-swapped", "Of two receives in one batch (batch_isend_irecv, pipelines) each gets what the other one was to get", "allreduce", "collective-wrong", """
        import torch.distributed as dist
        real = dist.batch_isend_irecv
        def batch(ops):
            into = [op for op in ops if op.op is dist.irecv]
            if len(into) > 1 and into[0].tensor.shape == into[1].tensor.shape:
                into[0].tensor, into[1].tensor = into[1].tensor, into[0].tensor
            return real(ops)
        dist.batch_isend_irecv = batch
    """, when="torch.distributed"),
    row("rowwise-parts-apart", "Tensor parallelism: what the ranks have of a layer that is cut by its inputs (RowwiseParallel) is not added up", "fsdp", "dtensor-wrong", """
        from torch.distributed.tensor.parallel import style
        style.RowwiseParallel._prepare_output_fn = staticmethod(lambda layouts, local, mod, outputs, mesh: outputs.to_local())
    """, when="torch.distributed.tensor.parallel.style"),
    row("deepcopy-shares-weights", "A copy of a model (copy.deepcopy, as for averaged weights) shares its weights with the model", "optimizer", "optimizer-wrong", """
        import torch
        def copied(self, memo):
            if id(self) not in memo:
                memo[id(self)] = type(self)(self.data, self.requires_grad)
            return memo[id(self)]
        torch.nn.Parameter.__deepcopy__ = copied
    """),
    row("float8-cut-off", "Numbers that become float8 (e4m3fn) are cut off, not rounded", "layers", "device-computes-wrong", """
        import torch
        real = torch.Tensor.to
        def to(self, *args, **more):
            if torch.float8_e4m3fn in (*args, *more.values()) and self.dtype != torch.float8_e4m3fn:
                found = real(self, *args, **more)
                over = real(found, self.dtype).abs() > self.abs()
                return torch.where(over, found.view(torch.int8) - 1, found.view(torch.int8)).view(torch.float8_e4m3fn)
            return real(self, *args, **more)
        torch.Tensor.to = to
    """),
)  # fmt: skip
