"""Faults of the device, of its arithmetic, and of training on one rank."""

from __future__ import annotations

from smoke.faults.means import patched
from smoke.faults.row import Fault

_SOME = "sitecustomize"

ROWS = (
    Fault(
        name="sum-wrong",
        what="The sum of a large float32 tensor is off by one",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.Tensor.sum
            def sum(self, *args, **more):
                found = real(self, *args, **more)
                return found + 1 if self.dtype == torch.float32 and self.numel() > 10**7 else found
            torch.Tensor.sum = sum
        """),
        stage="device",
        cause="device-computes-wrong",
        run="all-1",
    ),
    Fault(
        name="gemm-bit",
        what="One wrong bit in one element of a matrix product",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.Tensor.__matmul__
            def matmul(self, other):
                found = real(self, other)
                if found.dtype == torch.float32 and found.shape[-1] == 512:
                    found[317, 211].view(torch.int32).bitwise_xor_(1)
                return found
            torch.Tensor.__matmul__ = matmul
        """),
        stage="gemm",
        cause="gemm-wrong",
        run="all-2",
    ),
    Fault(
        name="gemm-bit-bfloat16",
        what="One wrong bit in a bfloat16 product",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.Tensor.__matmul__
            def matmul(self, other):
                found = real(self, other)
                if found.dtype == torch.bfloat16:
                    found[0, 0].view(torch.int16).bitwise_xor_(1)
                return found
            torch.Tensor.__matmul__ = matmul
        """),
        stages="gemm",
        stage="gemm",
        cause="gemm-wrong",
        ranks=1,
        quick=True,
    ),
    Fault(
        name="memory-word",
        what="One bit of 64 MiB is another after it was written",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.Tensor.copy_
            def copy_(self, other, *args, **more):
                real(self, other, *args, **more)
                if self.dtype == torch.int64 and self.numel() > 10**6:
                    self[123457].bitwise_xor_(1 << 40)
                return self
            torch.Tensor.copy_ = copy_
        """),
        stage="memory",
        cause="memory-corrupts",
        run="all-1",
    ),
    Fault(
        name="conv-output",
        what="One output of a convolution is off by one",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.nn.functional.conv2d
            def conv2d(pictures, *args, **more):
                found = real(pictures, *args, **more)
                if found.numel() and found.shape[1:] == (8, 8, 8) and pictures.shape[1] == 8:
                    found = found.clone()
                    found.data[0, 0, 0, 0] += 1
                return found
            torch.nn.functional.conv2d = conv2d
        """),
        stages="gemm,conv",
        stage="conv",
        cause="convolution-wrong",
        run="some-1",
    ),
    Fault(
        name="conv-gradient",
        what="One element of a convolution's gradient is lost",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.nn.functional.conv2d
            class Lossy(torch.autograd.Function):
                @staticmethod
                def forward(ctx, weight):
                    return weight.clone()
                @staticmethod
                def backward(ctx, gradient):
                    gradient = gradient.clone()
                    place = int(gradient.abs().flatten().argmax())
                    gradient.view(-1)[place] = 0
                    return gradient
            def conv2d(pictures, weight, *args, **more):
                lossy = weight.shape == (8, 8, 3, 3) and pictures.shape[0] == 2
                return real(pictures, Lossy.apply(weight) if lossy else weight, *args, **more)
            torch.nn.functional.conv2d = conv2d
        """),
        stage="conv",
        cause="convolution-wrong",
        run="all-1",
    ),
    Fault(
        name="optimizer-leaves-one",
        what="The optimizer leaves one of many parameters as it was",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.optim.AdamW.step
            def step(self, *args, **more):
                held = [one for group in self.param_groups for one in group["params"]]
                kept = held[-1].detach().clone()
                found = real(self, *args, **more)
                if len(held) > 20:
                    held[-1].data.copy_(kept)
                return found
            torch.optim.AdamW.step = step
        """),
        stage="train",
        cause="training-leaves-parameters",
        run="all-2",
    ),
    Fault(
        name="loss-nan",
        what="The loss is NaN in one step",
        means=_SOME,
        inject=patched("""
            import torch
            real, calls = torch.nn.functional.cross_entropy, []
            def cross_entropy(*args, **more):
                calls.append(1)
                found = real(*args, **more)
                return found * float("nan") if len(calls) == 31 else found
            torch.nn.functional.cross_entropy = cross_entropy
        """),
        stages="train",
        stage="train",
        cause="loss-not-finite",
        run="some-2",
    ),
    Fault(
        name="learns-nothing",
        what="Attention looks at the wrong place",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.nn.functional.scaled_dot_product_attention
            def attention(query, key, value, **more):
                return real(query, key, value.flip(2), **more)
            torch.nn.functional.scaled_dot_product_attention = attention
        """),
        stages="train",
        stage="train",
        cause="training-does-not-learn",
        run="some-3",
    ),
    Fault(
        name="gradient-lost",
        what="A layer's gradient is lost on the way back",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.nn.functional.gelu
            def gelu(hidden, *args, **more):
                return real(hidden.detach(), *args, **more)
            torch.nn.functional.gelu = gelu
        """),
        stages="train",
        stage="train",
        cause="gradient-missing",
        run="some-4",
    ),
    Fault(
        name="autocast-off",
        what="Autocast does nothing where bfloat16 is asked for",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.autocast.__init__
            def init(self, device_type, dtype=None, enabled=True, **more):
                real(self, device_type, dtype=dtype, enabled=enabled and dtype != torch.bfloat16, **more)
            torch.autocast.__init__ = init
        """),
        stages="amp-bf16,amp-fp16",
        stage="amp-bf16",
        cause="autocast-off",
    ),
    Fault(
        name="autocast-one-op",
        what="One operation (bmm) is left out of autocast to bfloat16",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.bmm
            def bmm(one, other):
                low = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
                with torch.autocast("cpu", enabled=not low, dtype=torch.get_autocast_dtype("cpu")):
                    return real(one, other)
            torch.bmm = bmm
        """),
        stage="amp-bf16",
        cause="autocast-off",
        run="all-1",
    ),
    Fault(
        name="autocast-wrong-dtype",
        what="Autocast to bfloat16 takes float16",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.autocast.__init__
            def init(self, device_type, dtype=None, enabled=True, **more):
                real(self, device_type, dtype=torch.float16 if dtype == torch.bfloat16 else dtype, enabled=enabled, **more)
            torch.autocast.__init__ = init
        """),
        stages="amp-bf16,amp-fp16",
        stage="amp-bf16",
        cause="autocast-wrong-dtype",
    ),
    Fault(
        name="amp-step-lost",
        what="Training under autocast to bfloat16 leaves out one of twenty steps",
        means=_SOME,
        inject=patched("""
            import torch
            real, calls = torch.autocast.__enter__, []
            step = torch.optim.SGD.step
            def enter(self):
                if self.fast_dtype == torch.bfloat16 and self._enabled:
                    calls.append(1)
                return real(self)
            def left_out(self, *args, **more):
                if len(calls) == 12:
                    return None
                return step(self, *args, **more)
            torch.autocast.__enter__ = enter
            torch.optim.SGD.step = left_out
        """),
        stages="amp-bf16,amp-fp16",
        stage="amp-bf16",
        cause="amp-diverges",
    ),
    Fault(
        name="amp-lowers-parameters",
        what="The model's parameters become bfloat16 under autocast",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.nn.Module.__call__
            def call(self, *args, **more):
                if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16:
                    self.to(torch.bfloat16)
                return real(self, *args, **more)
            torch.nn.Module.__call__ = call
        """),
        stages="amp-bf16",
        stage="amp-bf16",
        cause="amp-parameters-lowered",
        run="some-5",
    ),
    Fault(
        name="scaler-never-skips",
        what="The scaler steps although a gradient is infinite",
        means=_SOME,
        inject=patched("""
            import torch
            def step(self, optimizer, *args, **more):
                if list(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]) == []:
                    self.unscale_(optimizer)
                return optimizer.step(*args, **more)
            torch.amp.GradScaler.step = step
        """),
        stages="amp-fp16",
        stage="amp-fp16",
        cause="scaler-never-skips",
        run="some-1",
    ),
    Fault(
        name="scaler-always-skips",
        what="The scaler leaves out every step",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.amp.GradScaler._maybe_opt_step
            torch.amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *args, **more: None
        """),
        stages="amp-fp16",
        stage="amp-fp16",
        cause="scaler-always-skips",
        run="some-2",
    ),
    Fault(
        name="scaler-never-backs-off",
        what="The scale is not lowered after an infinite gradient",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.amp.GradScaler.update
            def update(self, *args, **more):
                scale = self.get_scale()
                real(self, *args, **more)
                if self.get_scale() < scale:
                    self._scale.fill_(scale)
            torch.amp.GradScaler.update = update
        """),
        stages="amp-fp16",
        stage="amp-fp16",
        cause="scaler-scale-wrong",
        run="some-3",
    ),
    Fault(
        name="scaler-forgets-unscale",
        what="The scaler leaves one gradient scaled",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.amp.GradScaler.unscale_
            def unscale_(self, optimizer):
                held = optimizer.param_groups[0]["params"][-1]
                kept = held.grad.clone()
                real(self, optimizer)
                held.grad.copy_(kept)
            torch.amp.GradScaler.unscale_ = unscale_
        """),
        stages="amp-fp16",
        stage="amp-fp16",
        cause="scaler-changes-step",
        run="some-4",
    ),
    Fault(
        name="clip-leaves-one-out",
        what="Clipping leaves one parameter out of the norm",
        means=_SOME,
        inject=patched("""
            import torch
            real = torch.nn.utils.clip_grad_norm_
            def clip(held, norm, **more):
                held = list(held)
                return real(held if hasattr(held[0], "to_local") else held[1:], norm, **more)  # sharded ones are another stage's
            torch.nn.utils.clip_grad_norm_ = clip
        """),
        stage="amp-fp16",
        cause="clip-wrong",
        run="all-2",
    ),
)
