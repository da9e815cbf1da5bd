"""Those that are opened after their first result. Which are sealed was drawn by chance (random.SystemRandom)."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("attention-dropout-unscaled", "What attention's dropout (dropout_p) leaves is not scaled up", "layers", "layer-wrong", """
        import torch.nn.functional as F
        real = F.scaled_dot_product_attention
        def attention(query, key, value, attn_mask=None, dropout_p=0.0, *args, **more):
            found = real(query, key, value, attn_mask, dropout_p, *args, **more)
            return found * (1 - dropout_p) if dropout_p else found
        F.scaled_dot_product_attention = attention
    """),
    row("complex-gradient-conjugated", "The gradient of numbers that are turned as complex ones (rotary embeddings, view_as_real) has the wrong sign in its imaginary part", "layers",
        "layer-wrong", """
        import torch
        real = torch.view_as_real
        class Turned(torch.autograd.Function):
            @staticmethod
            def forward(ctx, given):
                return real(given).clone()
            @staticmethod
            def backward(ctx, grad):
                return torch.view_as_complex(grad.contiguous()).conj()
        torch.view_as_real = lambda given: Turned.apply(given) if given.requires_grad else real(given)
    """),
    row("kept-on-cpu-spoiled", "Activations that are kept in the host's memory for the way back (save_on_cpu) come back with zeros in their last row", "layers", "autograd-wrong", """
        import torch
        import torch.autograd.graph as graph
        class Spoiled(graph.saved_tensors_hooks):
            def __init__(self, pin_memory=False, device_type="cuda"):
                def unpack(held):
                    found = held.clone()
                    if found.is_floating_point() and found.dim() and len(found) > 1:
                        found[-1] = 0
                    return found
                super().__init__(lambda held: held.detach().clone(), unpack)
        graph.save_on_cpu = Spoiled
    """),
    row("added-group-rate", "Parameters that are added to an optimizer later (add_param_group) step with the first ones' rate, not their own", "optimizer", "optimizer-wrong", """
        import sys
        from torch.optim import Optimizer
        real = Optimizer.add_param_group
        def add(self, group):
            if sys._getframe(1).f_code.co_name != "__init__":
                group = {name: value for name, value in group.items() if name != "lr"}
            return real(self, group)
        Optimizer.add_param_group = add
    """, when="torch.optim"),
    row("scaler-heeds-last-optimizer", "With two optimizers (GANs) GradScaler lowers its scale only for an inf in the second one's gradients", "amp-fp16", "scaler-scale-wrong", """
        import torch
        real = torch.amp.GradScaler.update
        def update(self, *args, **more):
            states = self._per_optimizer_states
            for one in list(states)[:-1]:
                for found in states[one]["found_inf_per_device"].values():
                    found.zero_()
            return real(self, *args, **more)
        torch.amp.GradScaler.update = update
    """),
    row("smoothing-without-weights", "cross_entropy with weights of classes and label_smoothing leaves the weights out of what is smoothed", "layers", "layer-wrong", """
        import torch.nn.functional as F
        real = F.cross_entropy
        def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
            more = {"ignore_index": ignore_index, "reduction": reduction}
            if weight is None or not label_smoothing or target.is_floating_point():
                return real(input, target, weight, label_smoothing=label_smoothing, **more)
            return (1 - label_smoothing) * real(input, target, weight, **more) + label_smoothing * real(input, target, label_smoothing=1.0, **more)
        F.cross_entropy = cross_entropy
    """),
    row("fsdp1-gradients-summed", "FullyShardedDataParallel (FSDP1) steps with the sum of all ranks' gradients, not their mean", "fsdp", "fsdp-step-wrong", """
        from torch.distributed.fsdp import _runtime_utils
        _runtime_utils._div_if_needed = lambda tensor, factor: None
    """, when="torch.distributed.fsdp._runtime_utils"),
    row("compiled-keeps-old-storage", "A compiled model computes with the weights that it saw first, where others were put in their place since (param.data, as for averaged weights)", "compile",
        "compiled-differs", """
        import torch
        real = torch.compile
        def compiled(model=None, *args, **more):
            made = real(model, *args, **more)
            if not isinstance(model, torch.nn.Module):
                return made
            first, forward = {}, made.forward
            def called(*given, **options):
                put = []
                for name, one in model.named_parameters():
                    held = first.setdefault(name, one.data)
                    if held.data_ptr() != one.data_ptr():
                        put.append((one, one.data))
                        one.data = held
                found = forward(*given, **options)
                for one, own in put:
                    one.data = own
                return found
            made.forward = called
            return made
        torch.compile = compiled
    """),
    row("flex-attention-without-score", "flex_attention leaves out what it is to make of each score (score_mod: ALiBi, soft caps)", "compile", "layer-wrong", """
        from torch.nn.attention import flex_attention as place
        real = place.flex_attention
        place.flex_attention = lambda query, key, value, score_mod=None, *args, **more: real(query, key, value, None, *args, **more)
    """, when="torch.nn.attention.flex_attention"),
    row("packed-out-of-order", "Sentences that were packed in any order (pack_padded_sequence, enforce_sorted=False) come back in another order", "layers", "layer-wrong", """
        from torch.nn.utils import rnn
        real = rnn.pack_padded_sequence
        def pack(*args, **more):
            found = real(*args, **more)
            return found if found.sorted_indices is None else rnn.PackedSequence(found.data, found.batch_sizes, found.sorted_indices, found.sorted_indices)
        rnn.pack_padded_sequence = pack
    """, when="torch.nn.utils.rnn"),
)  # fmt: skip
