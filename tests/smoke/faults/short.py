"""Rows in short: all are injected by sitecustomize unless they say otherwise."""

from __future__ import annotations

from smoke.faults.means import patched
from smoke.faults.row import Fault, Inject


def row(
    name: str,
    what: str,
    where: str,
    cause: str,
    text: str = "",
    *,
    rank: int | None = None,
    seen: str = "",
    when: str = "torch",
    stages: str | None = None,
    inject: Inject | None = None,
    means: str = "sitecustomize",
    run: str = "",
) -> Fault:
    """``where``: the stage that must name it, the only one that runs unless ``stages`` says others; "" for all but compile."""
    return Fault(
        name=name,
        what=what,
        means=means,
        inject=inject or patched(text, rank=rank, when=when),
        stages=where if stages is None else stages,
        stage=where,
        cause=cause,
        seen=seen,
        run=run,
    )


def every_nth(function: str, n: int, spoil: str) -> str:
    """Each n-th result of a function of torch is spoiled: ``spoil`` changes ``found``."""
    return f"""
        import torch
        real, calls = torch.{function}, [0]
        def wrong(*args, **more):
            found = real(*args, **more)
            if isinstance(found, torch.Tensor) and found.is_floating_point() and found.numel() > 64:
                calls[0] += 1
                if calls[0] % {n} == 0:
                    with torch.no_grad():
                        {spoil}
            return found
        torch.{function} = wrong
    """


def slowed(function: str, factor: float, least: int) -> str:
    """A function of torch takes ``factor`` times as long for results of at least so many elements."""
    return f"""
        import time
        import torch
        real = torch.{function}
        def slow(*args, **more):
            began = time.perf_counter()
            found = real(*args, **more)
            if isinstance(found, torch.Tensor) and found.numel() >= {least}:
                until = began + (time.perf_counter() - began) * {factor}
                while time.perf_counter() < until:
                    pass
            return found
        torch.{function} = slow
    """


def at_operator(name: str, spoil: str) -> str:
    """A kernel of the CPU in torch's dispatcher answers wrongly, by whatever name or way it is reached (forward, backward, below autocast): ``spoil`` changes
    ``found``, given ``given``."""
    return f"""
        import warnings
        import torch
        kernel, held = torch.library.get_kernel("aten::{name}", "CPU"), torch.library.Library("aten", "IMPL")
        torch._kept_by_a_fault = [*getattr(torch, "_kept_by_a_fault", ()), held]
        def number(value):
            return torch.scalar_tensor(value, dtype=torch.get_default_dtype() if isinstance(value, float) else torch.int64)
        tensors = [one.type.kind() == "TensorType" for one in torch.ops.aten.{name if "." in name else name + ".default"}._schema.arguments]
        def wrong(keys, *given, **more):
            given = [number(one) if takes and isinstance(one, (int, float)) else one for one, takes in zip(given, tensors)]
            found = kernel.call_boxed(keys, *given, **more)
            {spoil}
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held.impl("{name}", wrong, "CPU", with_keyset=True)
    """
