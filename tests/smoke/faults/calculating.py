"""Faults of the device, of its arithmetic, and of training on one rank in full precision."""

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
        run="all-2",
    ),
    Fault(
        name="products-lowered-by-newer-name",
        what="Something lets float32 products be computed in bfloat16, by the setting that torch 2.9 has for it",
        means=_SOME,
        inject=patched("""
            import torch
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        """),
        stages="device",
        stage="device",
        cause="torch-setting-changed",
        seen="mkldnn.*bf16",
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
        name="gpu-start-hangs",
        what="CUDA does not come up: asking one rank's driver for GPUs never returns",
        means=_SOME,
        inject=patched(
            """
            import time
            import torch
            torch.cuda.is_available = lambda: time.sleep(1000)
            """,
            rank=1,
        ),
        stages="gemm",
        stage="device",
        cause="rank-hung",
        seen="rank 1 did not go on",
        others={"gemm": "unknown"},
    ),
    Fault(
        name="device-lost",
        what="After an ECC error in a product nothing works on one rank's device any more",
        means=_SOME,
        inject=patched(
            """
            import os
            import torch
            real, ones = torch.Tensor.__matmul__, torch.ones
            lost = []
            def gives_up(work):
                def called(*args, **more):
                    if lost:
                        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
                    return work(*args, **more)
                return called
            def matmul(self, other):
                mark = os.path.join(os.environ["TMPDIR"], "lost")
                if not os.path.exists(mark):
                    open(mark, "w").close()
                    lost.append(1)
                return gives_up(real)(self, other)
            torch.Tensor.__matmul__, torch.ones = matmul, gives_up(ones)
            """,
            rank=1,
        ),
        stages="gemm,conv",
        stage="gemm",
        cause="gpu-ecc-uncorrectable",
        seen="rank 1: .*uncorrectable ECC",
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
        run="all-2",
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
        run="all-2",
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
)
