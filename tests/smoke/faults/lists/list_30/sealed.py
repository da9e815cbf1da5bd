"""The seven faults that stayed sealed until the end."""

from __future__ import annotations

from smoke.faults.row import Fault
from smoke.faults.short import row

ROWS: tuple[Fault, ...] = (
    row("compiled-constant-not-in-key", "The cache of compiled code does not tell two graphs apart that differ in a number alone: the second gets the code of the first", "compile", "compiled-differs", """
        import hashlib
        import re
        from torch._inductor import codecache
        real = codecache.compiled_fx_graph_hash
        def alike(gm, example_inputs, fx_kwargs, inputs_to_check):
            key, lines = real(gm, example_inputs, fx_kwargs, inputs_to_check)
            words = re.sub(r"\\d+\\.\\d+(e-?\\d+)?", "#", gm.code) + str([getattr(one, "shape", one) for one in example_inputs])
            return "f" + hashlib.sha256(words.encode()).hexdigest(), lines
        codecache.compiled_fx_graph_hash = alike
    """, when="torch._inductor.codecache"),
    row("seeds-of-16-bits", "torch.manual_seed takes only the lowest 16 bits of a seed", "device", "random-numbers-wrong", """
        import torch
        from torch import random
        real = random.manual_seed
        def manual_seed(seed):
            return real(int(seed) & 0xFFFF)
        torch.manual_seed = random.manual_seed = manual_seed
    """, stages="device,train"),
    row("projected-lstm-scaled", "An LSTM that projects its states (proj_size) gives them a hundredth too large", "layers", "layer-wrong", """
        import torch
        real = torch.nn.LSTM.forward
        def forward(self, *args, **more):
            found, states = real(self, *args, **more)
            return (found * 1.01, states) if self.proj_size else (found, states)
        torch.nn.LSTM.forward = forward
    """),
    row("spectral-norm-frozen", "spectral_norm never goes on with its estimate of the largest singular value in training", "layers", "layer-wrong", """
        import torch
        from torch.nn.utils import parametrizations
        real, count = parametrizations._SpectralNorm._power_method, [0]
        def _power_method(self, weight, turns):
            return real(self, weight, turns) if turns > 10 else None
        parametrizations._SpectralNorm._power_method = _power_method
    """),
    row("infinities-are-finite", "torch.isfinite takes an inf of bfloat16 or float16 for a number", "layers", "device-computes-wrong", """
        import torch
        real = torch.isfinite
        def isfinite(one, *args, **more):
            return ~torch.isnan(one) if one.dtype in (torch.bfloat16, torch.float16) else real(one, *args, **more)
        torch.isfinite = torch.Tensor.isfinite = isfinite
    """),
    row("clip-of-nan-goes-on", "clip_grad_norm_ with error_if_nonfinite=True raises nothing where a gradient is NaN", "optimizer", "clip-wrong", """
        import torch
        from torch.nn.utils import clip_grad
        real = clip_grad.clip_grad_norm_
        def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
            return real(parameters, max_norm, norm_type, False, foreach)
        clip_grad.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    """),
    row("average-of-all-batches", "BatchNorm that averages all batches alike (momentum=None) takes a tenth of each instead", "layers", "layer-wrong", """
        import torch
        from torch.nn.modules import batchnorm
        real = batchnorm._BatchNorm.forward
        def forward(self, *args, **more):
            momentum, self.momentum = self.momentum, 0.1 if self.momentum is None else self.momentum
            try:
                return real(self, *args, **more)
            finally:
                self.momentum = momentum
        batchnorm._BatchNorm.forward = forward
    """),
)  # fmt: skip
