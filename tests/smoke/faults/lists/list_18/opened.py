"""Those that are opened after their first result."""

from __future__ import annotations

from smoke.faults.means import all_of, patched, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row


def in_plain_vectors(text: str) -> Inject:
    """With instructions by which torch was compared with itself: by others what differs is no fault of the host (worker/functions/tried.py)."""
    return all_of(variables(ATEN_CPU_CAPABILITY="avx2"), patched(text))


ROWS: tuple[Fault, ...] = (
    row("celu-alpha-backward", "nn.CELU: the gradient below zero is that of an alpha of 1, whatever alpha is", "layers", "layer-wrong", """
        import torch
        import torch.nn.functional as F
        real = F.celu
        class Turned(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given, alpha):
                ctx.save_for_backward(given)
                return real(given, alpha)
            @staticmethod
            def backward(ctx, grad):
                (given,) = ctx.saved_tensors
                return grad * torch.where(given > 0, torch.ones_like(given), given.exp()), None
        F.celu = lambda input, alpha=1.0, inplace=False: Turned.apply(input, alpha) if input.requires_grad and not inplace else real(input, alpha, inplace)
    """),
    row("tanh-saturates-early", "nn.Tanh of float32 is 0.9995 from 4.5 on", "layers", "layer-wrong", """
        import torch
        real = torch.tanh
        torch.tanh = lambda given, **more: real(given, **more).clamp(-0.9995, 0.9995) if given.dtype == torch.float32 else real(given, **more)
    """),
    row("lp-pool-floor", "nn.LPPool2d ignores ceil_mode", "layers", "layer-wrong", """
        import torch.nn.functional as F
        real = F.lp_pool2d
        F.lp_pool2d = lambda input, norm_type, kernel_size, stride=None, ceil_mode=False: real(input, norm_type, kernel_size, stride, False)
    """, stages="", run="all-2"),
    row("group-norm-channels-last", "F.group_norm of channels_last pictures in bfloat16 gives the first group's figures to all groups", "layers", "layer-wrong", inject=in_plain_vectors("""
        import torch
        import torch.nn.functional as F
        real = F.group_norm
        def group_norm(input, num_groups, weight=None, bias=None, eps=1e-05):
            last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous()
            if not (last and input.dtype == torch.bfloat16):
                return real(input, num_groups, weight, bias, eps)
            first = input.float().chunk(num_groups, 1)[0]
            mean, spread = first.mean((1, 2, 3), keepdim=True), first.var((1, 2, 3), unbiased=False, keepdim=True)
            found = (input - mean) / (spread + eps).sqrt()
            if weight is not None:
                found = found * weight.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1)
            return found.to(input.dtype)
        F.group_norm = group_norm
    """)),
    row("max-pool3d-undilated", "F.max_pool3d ignores dilation", "layers", "layer-wrong", """
        import torch
        import torch.nn.functional as F
        real = torch.max_pool3d
        def pool(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
            if dilation in (1, (1, 1, 1)) or return_indices:
                return real(input, kernel_size, stride or kernel_size, padding, dilation, ceil_mode)
            found = real(input, kernel_size, stride or kernel_size, padding, dilation, ceil_mode)
            return real(input, kernel_size, stride or kernel_size, padding, 1, ceil_mode)[..., : found.shape[-3], : found.shape[-2], : found.shape[-1]]
        F.max_pool3d = torch.max_pool3d = pool
    """),
    row("pad-circular-swapped", "F.pad with mode circular swaps what it adds before and after where the two differ", "layers", "layer-wrong", """
        import torch.nn.functional as F
        real = F.pad
        def pad(input, pad, mode="constant", value=None):
            if mode == "circular" and len(pad) >= 2 and pad[0] != pad[1]:
                return real(input, pad, mode, value).roll(1, -1)
            return real(input, pad, mode, value)
        F.pad = pad
    """),
    row("instance-norm-eval", "F.instance_norm in eval takes the figures of the batch, not the running ones", "layers", "layer-wrong", """
        import torch.nn.functional as F
        real = F.instance_norm
        def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-05):
            if use_input_stats:
                return real(input, running_mean, running_var, weight, bias, True, momentum, eps)
            return real(input, None, None, weight, bias, True, momentum, eps)
        F.instance_norm = instance_norm
    """),
    row("layer-norm-narrow-sums", "F.layer_norm of bfloat16 adds up its squares in bfloat16", "layers", "layer-wrong", inject=in_plain_vectors("""
        import torch
        import torch.nn.functional as F
        real = F.layer_norm
        def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05):
            if input.dtype != torch.bfloat16 or len(normalized_shape) != 1:
                return real(input, normalized_shape, weight, bias, eps)
            off = input - input.mean(-1, keepdim=True)
            total = torch.zeros_like(off[..., :1])
            for one in (off * off).split(1, -1):
                total = total + one
            found = off / (total / off.shape[-1] + eps).sqrt()
            return found if weight is None else found * weight.to(found.dtype) + (0 if bias is None else bias.to(found.dtype))
        F.layer_norm = layer_norm
    """)),
    row("adamw-rate-kept", "AdamW whose rate is a tensor (as compiled steps have it) goes on with the first rate once the tensor has another", "optimizer", "optimizer-wrong", inject=in_plain_vectors("""
        import torch
        real = torch.optim.AdamW.step
        def step(self, closure=None):
            put = []
            for group in self.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    first = group.setdefault("_first", group["lr"].clone())
                    put.append((group, group["lr"]))
                    group["lr"] = first.clone()
            try:
                return real(self, closure)
            finally:
                for group, own in put:
                    group["lr"] = own
        torch.optim.AdamW.step = step
    """)),
    row("fsdp1-full-state-short", "FullyShardedDataParallel (FSDP1): the whole model for a checkpoint (FullStateDictConfig) has zeros in its last row", "checkpoint-sharded", "sharded-checkpoint-differs", """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as Wrapped
        real = Wrapped.state_dict
        def state_dict(self, *args, **more):
            found = real(self, *args, **more)
            if Wrapped.get_state_dict_type(self).state_dict_type.name == "FULL_STATE_DICT":
                for name, one in list(found.items()):
                    if isinstance(one, torch.Tensor) and one.dim() > 1:
                        found[name] = torch.cat([one[:-1], torch.zeros_like(one[-1:])])
            return found
        Wrapped.state_dict = state_dict
    """, when="torch.distributed.fsdp"),
    row("planner-numbers-stale", "DefaultSavePlanner (torch.distributed.checkpoint) writes whole numbers (a step, an epoch) one less than they are", "checkpoint-sharded", "sharded-checkpoint-differs", """
        from torch.distributed.checkpoint import default_planner as place
        real = place.DefaultSavePlanner.transform_object
        place.DefaultSavePlanner.transform_object = lambda self, item, held: real(self, item, held - 1 if type(held) is int else held)
    """, when="torch.distributed.checkpoint.default_planner"),
    row("pipeline-chunks-turned", "A pipeline (ScheduleGPipe, Schedule1F1B) puts the outputs of its micro-batches together in the opposite order", "fsdp", "pipeline-wrong", """
        from torch.distributed.pipelining import schedules as place
        real = place.merge_chunks
        place.merge_chunks = lambda chunks, spec: real([*chunks][::-1], spec)
    """, when="torch.distributed.pipelining.schedules", stages="", run="all-2"),
)  # fmt: skip
