"""Faults of one host's torch: products, gradients, functions and collectives that are wrong."""

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
_EXCHANGED = """
def plant(torch):
    import torch.distributed as dist
    def changed(right):
        def exchange(*words, **named):
            found = right(*words, **named)
            if found is not None and hasattr(found, "wait"):
                found.wait()
            value = words[0] if words else list(named.values())[0]
            {what}
            return found
        return exchange
    for name in {names}:
        if hasattr(dist, name):
            setattr(dist, name, changed(getattr(dist, name)))
"""
_ALL_TO_ALL = """parts = list(value) if isinstance(value, (list, tuple)) else list(value.chunk(dist.get_world_size()))
            first = parts[0].clone()
            parts[0].copy_(parts[1])
            parts[1].copy_(first)"""
_RECEIVED = """if value.numel() > 256:
                value.view(-1)[-3] += 1"""
_WHOLE = """if value.dtype == torch.int64:
                value.bitwise_and_(0xffffffff)"""
_OWN = """
def plant(torch):
    import torch.distributed as dist
    right = dist.all_reduce
    def changed(value, *rest, **more):
        before = value.clone()
        found = right(value, *rest, **more)
        {what}
        return found
    dist.all_reduce = changed
"""
_OWN_MAXIMUM = """if dist.ReduceOp.MAX in (*rest, *more.values()):
            value.copy_(before)"""
_OWN_MINIMUM = _OWN_MAXIMUM.replace("MAX", "MIN")
_BYTES = """if value.dtype == torch.uint8:
                value.view(-1)[value.numel() // 2] ^= 1"""
_OWN_END = """if value.numel() > 1000000:
            value.view(-1)[-1000:] = before.view(-1)[-1000:]"""
_SCATTERED = """
def plant(torch):
    import torch.distributed as dist
    def changed(right):
        def scatter(output, given, *rest, **more):
            parts = list(given) if isinstance(given, (list, tuple)) else list(given.chunk(dist.get_world_size()))
            kept = [part.clone() for part in parts]
            found = right(output, given, *rest, **more)
            if found is not None:
                found.wait()
            if len(parts) > 1:
                at = dist.get_rank()
                output.view(-1).add_((kept[(at + 1) % len(parts)] - kept[at]).view(-1))
            return found
        return scatter
    for name in ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"):
        if hasattr(dist, name):
            setattr(dist, name, changed(getattr(dist, name)))
"""
_COPIED = """
def plant(torch):
    right = torch.Tensor.copy_
    def changed(self, source, *rest, **more):
        found = right(self, source, *rest, **more)
        if self.numel() > 1000000 and self.dtype == torch.float32:
            with torch.no_grad():
                self.view(-1).view(torch.int32)[self.numel() // 3] ^= 1 << 12
        return found
    torch.Tensor.copy_ = changed
"""
_SOFTMAX = """
def plant(torch):
    def changed(right):
        return lambda *words, **named: right(*words, **named) * 1.001
    for where, name in ((torch, "softmax"), (torch.nn.functional, "softmax"), (torch.Tensor, "softmax")):
        setattr(where, name, changed(getattr(where, name)))
"""
_ROW = """
def plant(torch):
    def changed(right, asked, table):
        def lookup(*words, **named):
            words = list(words)
            if len(words) > asked and words[asked].numel() >= 100:
                numbers = words[asked].clone()
                numbers.view(-1)[99::100] = (numbers.view(-1)[99::100] + 1) % words[table].shape[0]
                words[asked] = numbers
            return right(*words, **named)
        return lookup
    torch.nn.functional.embedding = changed(torch.nn.functional.embedding, 0, 1)
    torch.embedding = changed(torch.embedding, 1, 0)
    torch.index_select = changed(torch.index_select, 2, 0)
    torch.Tensor.index_select = changed(torch.Tensor.index_select, 2, 0)
"""
_OWN_SHARE = """
def plant(torch):
    import torch.distributed as dist
    right = dist.reduce
    def changed(value, dst=0, *rest, **more):
        before = value.clone()
        found = right(value, dst, *rest, **more)
        if found is not None:
            found.wait()
        if dist.get_rank() == (dst if dst is not None else more.get("group_dst")):
            value -= before
        return found
    dist.reduce = changed
"""
_NO_WAIT = """
def plant(torch):
    torch.distributed.barrier = lambda *words, **named: None
"""
_HALF = """if value.dtype == torch.float16:
                value.mul_(1 + 1 / 512)"""
_OFF_BY_ONE = """value.add_(1)"""
_CLONED = """
def plant(torch):
    count = [0]
    def changed(right):
        def clone(*words, **named):
            found = right(*words, **named)
            if found.numel() > 1000000 and found.dtype == torch.float32:
                count[0] += 1
                if count[0] % 4 == 0:
                    with torch.no_grad():
                        found.view(-1).view(torch.int32)[found.numel() // 3] ^= 1 << 12
            return found
        return clone
    torch.Tensor.clone, torch.clone = changed(torch.Tensor.clone), changed(torch.clone)
"""
_OTHER_SEED = """
def plant(torch):
    right = torch.manual_seed
    torch.manual_seed = lambda seed: right(seed + 1)
    own = torch.Generator.manual_seed
    class Other(torch.Generator):
        def manual_seed(self, seed):
            return own(self, seed + 1)
    torch.Generator = Other
"""
_ROWS_LEFT = """
def plant(torch):
    def changed(right, at, dim):
        def added(*words, **named):
            words = list(words)
            if len(words) > at and torch.is_tensor(words[at]) and words[at].shape[0] >= 100:
                source = words[at].clone()
                source[99::100] = 0
                words[at] = source
            return right(*words, **named)
        return added
    for name in ("index_add_", "index_add", "scatter_add_", "scatter_add"):
        setattr(torch.Tensor, name, changed(getattr(torch.Tensor, name), 3, 1))
    torch.index_add, torch.scatter_add = changed(torch.index_add, 3, 1), changed(torch.scatter_add, 3, 1)
"""
_CHANGED = """
def plant(torch):
    def changed(right):
        def function(*words, **named):
            found = right(*words, **named)
            if {where}:
                with torch.no_grad():
                    {what}
            return found
        return function
    for where, name in {names}:
        if hasattr(where, name):
            setattr(where, name, changed(getattr(where, name)))
"""
_SECOND_LARGEST = """
def plant(torch):
    def changed(right):
        def largest(given, *rest, **more):
            if not torch.is_tensor(given) or given.dim() != 1 or given.numel() <= 100:
                return right(given, *rest, **more)
            hidden = given.clone()
            hidden[int(given.float().max(0).indices)] = given.min()
            return right(hidden, *rest, **more)
        return largest
    for where in (torch, torch.Tensor):
        for name in ("topk", "argmax"):
            setattr(where, name, changed(getattr(where, name)))
"""
_LEFT_AS_IT_WAS = """
def plant(torch):
    def without_one(chosen):
        chosen = chosen.clone()
        if chosen.numel() > 1000 and chosen.any():
            chosen.view(-1)[int(chosen.view(-1).int().max(0).indices)] = False
        return chosen
    def filled(right):
        return lambda self, mask, value: right(self, without_one(mask), value)
    def chosen(right):
        return lambda condition, *values: right(without_one(condition), *values) if len(values) == 2 else right(condition, *values)
    for name in ("masked_fill", "masked_fill_"):
        setattr(torch.Tensor, name, filled(getattr(torch.Tensor, name)))
    torch.masked_fill, torch.where = filled(torch.masked_fill), chosen(torch.where)
"""


def _product(what: str, *, place: int, held: bool = False) -> Fault:
    return Fault(patched(_PRODUCTS.replace("{what}", what)), node_with("silent-data-corruption"), place, held)


_WITH_SUM = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "all_reduce")'


def _collective(name: str, what: str, causes: tuple[str, ...], place: int) -> Fault:
    return Fault(patched(_COLLECTIVE.replace("{name}", name).replace("{what}", what), _WITH_SUM), node_with(*causes), place)


def _exchanged(body: str, *, place: int, held: bool = False) -> Fault:
    return Fault(patched(body, _WITH_SUM), node_with("silent-data-corruption"), place, held)


def _after(names: tuple[str, ...], what: str, *, place: int, held: bool = False) -> Fault:
    return _exchanged(_EXCHANGED.replace("{names}", repr(names)).replace("{what}", what), place=place, held=held)


def _function(names: str, *, where: str = "True", what: str, place: int, held: bool = False) -> Fault:
    return _computed(_CHANGED.replace("{names}", names).replace("{where}", where).replace("{what}", what), place=place, held=held)


def _computed(body: str, *, place: int, held: bool = False) -> Fault:
    return Fault(patched(body), node_with("silent-data-corruption"), place, held)


FAULTS = {
    "bf16-flip": _product(_BFLOAT16, place=1, held=True),
    "large-flip": _product(_LARGE, place=1),
    "nan-product": _product(_NAN, place=4),
    "wrong-gradient": _product(_GRADIENT, place=1),
    "wrong-broadcast": _collective("broadcast", _LEFT, ("silent-data-corruption",), 2),
    "swapped-gather": _collective("all_gather", _SWAPPED, ("silent-data-corruption",), 1),
    "wrong-alltoall": _after(("all_to_all", "all_to_all_single"), _ALL_TO_ALL, place=3),
    "wrong-receive": _after(("recv",), _RECEIVED, place=2),
    "wrong-maximum": _exchanged(_OWN.replace("{what}", _OWN_MAXIMUM), place=4),
    "wrong-whole-sum": _after(("all_reduce",), _WHOLE, place=4),
    "wrong-large-sum": _exchanged(_OWN.replace("{what}", _OWN_END), place=4),
    "wrong-scatter": _exchanged(_SCATTERED, place=3),
    "wrong-copy": _computed(_COPIED, place=1, held=True),
    "wrong-softmax": _computed(_SOFTMAX, place=1),
    "wrong-row": _computed(_ROW, place=3),
    "wrong-reduce": _exchanged(_OWN_SHARE, place=4),
    "wrong-barrier": Fault(patched(_NO_WAIT, _WITH_SUM), node_with(), 4),
    "wrong-half-sum": _after(("all_reduce",), _HALF, place=1, held=True),
    "wrong-root-scatter": _after(("scatter",), _OFF_BY_ONE, place=3),
    "wrong-large-copy": _computed(_CLONED, place=1),
    "other-random": Fault(
        patched(_OTHER_SEED), node_with("silent-data-corruption", "software-differs-between-nodes"), 3, held=True
    ),
    "wrong-index-add": _computed(_ROWS_LEFT, place=1),
    "wrong-minimum": _exchanged(_OWN.replace("{what}", _OWN_MINIMUM), place=1),
    "wrong-byte-broadcast": _after(("broadcast",), _BYTES, place=4),
    "wrong-gather-tensor": _after(
        ("all_gather_into_tensor", "all_gather_single", "_all_gather_base"), _OFF_BY_ONE, place=3, held=True
    ),
    "wrong-convolution": _function(
        '((torch, "conv2d"), (torch, "conv1d"), (torch.nn.functional, "conv2d"), (torch.nn.functional, "conv1d"))',
        what="found.view(-1)[found.numel() // 2] += 1",
        place=4,
        held=True,
    ),
    "wrong-batch-product": _function(
        '((torch, "bmm"), (torch.Tensor, "bmm"), (torch, "baddbmm"))', what="found.view(-1)[found.numel() // 2] += 1", place=2
    ),
    "wrong-total": _function(
        '((torch, "sum"), (torch.Tensor, "sum"), (torch.Tensor, "mean"), (torch, "mean"))',
        where="torch.is_tensor(words[0]) and words[0].numel() > 1000000 and words[0].is_floating_point()",
        what="found *= 1.001",
        place=1,
    ),
    "wrong-double": _function(
        '((torch, "mm"), (torch, "matmul"), (torch.Tensor, "__matmul__"), (torch.Tensor, "matmul"))',
        where="found.dtype == torch.float64",
        what="found.view(-1)[found.numel() // 2] *= 1.0001",
        place=2,
    ),
    "wrong-attention": _function(
        '((torch.nn.functional, "scaled_dot_product_attention"),)',
        what="found.view(-1)[found.numel() // 2] += 0.01",
        place=3,
        held=True,
    ),
    "wrong-exponential": _function(
        '((torch, "exp"), (torch.Tensor, "exp"))',
        where="found.is_floating_point()",
        what="found.mul_(torch.where(found > 7.389, 1.001, 1.0).to(found.dtype))",
        place=2,
    ),
    "wrong-cross-entropy": _function(
        '((torch.nn.functional, "cross_entropy"), (torch.nn.functional, "nll_loss"))',
        what="found.mul_(1.001)",
        place=2,
        held=True,
    ),
    "wrong-largest": _computed(_SECOND_LARGEST, place=1),
    "wrong-pooling": _function(
        '((torch.nn.functional, "max_pool2d"), (torch, "max_pool2d"))', what="found.view(-1)[found.numel() // 2] -= 1", place=4
    ),
    "wrong-selection": _computed(_LEFT_AS_IT_WAS, place=1),
}
