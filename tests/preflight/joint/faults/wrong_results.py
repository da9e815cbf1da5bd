"""Faults of one host's torch: products, gradients and collectives that are wrong or late."""

from __future__ import annotations

from preflight.joint.faults.computing import patched
from preflight.joint.faults.expected import Fault
from preflight.joint.faults.network import node_with

_PRODUCTS = """
def plant(torch):
    def changed(right):
        def product(*words, **named):
            found = right(*words, **named)
            {what}
            return found
        return product
    for where, name in ((torch, "mm"), (torch, "matmul"), (torch.Tensor, "__matmul__"), (torch.Tensor, "matmul"), (torch.nn.functional, "linear")):
        setattr(where, name, changed(getattr(where, name)))
"""
_BFLOAT16 = """if found.dtype == torch.bfloat16:
                with torch.no_grad():
                    found.view(torch.int16).view(-1)[found.numel() // 3] ^= 1 << 8"""
_LARGE = """if found.dtype == torch.float32 and found.numel() > 65536:
                with torch.no_grad():
                    found.view(torch.int32).view(-1)[found.numel() // 3] ^= 1 << 20"""
_NAN = """plant.count = getattr(plant, "count", 0) + 1
            if plant.count % 50 == 0 and found.is_floating_point():
                with torch.no_grad():
                    found.view(-1)[found.numel() // 2] = float("nan")"""
_GRADIENT = """if found.requires_grad:
                found.register_hook(lambda gradient: gradient * 1.001)"""

_COLLECTIVE = """
def plant(torch):
    import time
    import torch.distributed as dist
    right = dist.{name}
    count = [0]
    def changed(*words, **named):
        count[0] += 1
        {what}
    dist.{name} = changed
"""
_LEFT = """value = words[0] if words else named["tensor"]
        before = value.clone()
        found = right(*words, **named)
        if count[0] % 2 == 0:
            if found is not None:
                found.wait()
            value.copy_(before)
        return found"""
_SWAPPED = """found = right(*words, **named)
        parts = words[0] if words else named["tensor_list"]
        if found is not None:
            found.wait()
        first = parts[0].clone()
        parts[0].copy_(parts[1])
        parts[1].copy_(first)
        return found"""
_LATE = """time.sleep(0.3)
        return right(*words, **named)"""


def _product(what: str, *, place: int, held: bool = False) -> Fault:
    return Fault(patched(_PRODUCTS.replace("{what}", what)), node_with("silent-data-corruption"), place, held)


def _collective(name: str, what: str, causes: tuple[str, ...], place: int) -> Fault:
    ready = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "all_reduce")'
    return Fault(patched(_COLLECTIVE.replace("{name}", name).replace("{what}", what), ready), node_with(*causes), place)


FAULTS = {
    "bf16-flip": _product(_BFLOAT16, place=1, held=True),
    "large-flip": _product(_LARGE, place=1),
    "nan-product": _product(_NAN, place=4),
    "wrong-gradient": _product(_GRADIENT, place=1),
    "wrong-broadcast": _collective("broadcast", _LEFT, ("silent-data-corruption",), 2),
    "swapped-gather": _collective("all_gather", _SWAPPED, ("silent-data-corruption",), 1),
    "late-sum": _collective("all_reduce", _LATE, ("straggler-network", "straggler-compute"), 2),
}
