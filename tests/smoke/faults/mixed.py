"""Faults of mixed precision on one rank: autocast and the scaler."""

from __future__ import annotations

from smoke.faults.means import patched, scale_not_moved
from smoke.faults.row import Fault

_SOME = "sitecustomize"

ROWS = (
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
                lowered = torch.is_autocast_enabled("cpu")
                kept = lowered and torch.get_autocast_dtype("cpu") != torch.bfloat16
                with torch.autocast("cpu", enabled=kept, dtype=torch.get_autocast_dtype("cpu")):
                    return real(one, other)
            torch.bmm = bmm
        """),
        stage="amp-bf16",
        cause="autocast-off",
        run="all-2",
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
            real, calls, steps = torch.autocast.__enter__, [], []
            step = torch.optim.SGD.step
            def enter(self):
                if self.fast_dtype == torch.bfloat16 and self._enabled:
                    calls.append(1)
                return real(self)
            def left_out(self, *args, **more):
                low = bool(calls)
                calls.clear()
                steps.extend([1] * low)
                if low and len(steps) == 12:
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
        inject=scale_not_moved("<"),
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
                other = more or hasattr(held[0], "to_local")  # other norms, and sharded parameters, are other stages'
                return real(held if other else held[1:], norm, **more)
            torch.nn.utils.clip_grad_norm_ = clip
        """),
        stage="amp-fp16",
        cause="clip-wrong",
        run="all-2",
    ),
)
