"""Functions of functions (torch.func): a function for a whole batch, its gradients one by one, its derivatives in a direction."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import QUICK, RankContext
from torchtune_sys.smoke.worker.functions.combined import Answer, answers_are_right

_SCRIPTED = "PYTORCH_JIT"


def transforms_are_right(here: RankContext) -> None:
    """Check each on whole numbers, whose derivatives are whole, too."""
    if not hasattr(torch, "func"):
        return
    for part in (_of_batches, _of_gradients, _of_modules) + (_of_directions,) * (here.level != QUICK):
        for name, found, right in part(here):
            told = "torch.func.%s" % name
            shapes = ("%s, its shape" % told, found.shape, torch.as_tensor(right).shape)
            answers_are_right((shapes, (told, found, right)), "function-transform-wrong")


def _two_rows(here: RankContext) -> Tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([1.0, -2.0, 3.0], device=here.device), torch.tensor([2.0, 5.0, -1.0], device=here.device)


def _of_batches(here: RankContext) -> Iterator[Answer]:
    rows = torch.arange(12.0, device=here.device).view(3, 4)
    turned = (rows * rows - 7).t().contiguous()
    right = torch.arange(12.0).view(3, 4)
    wanted = right * 2 + (right * right - 7)
    yield "vmap", torch.func.vmap(lambda a, b: a * 2 + b, in_dims=(0, 1))(rows, turned), wanted
    yield "vmap with out_dims=1", torch.func.vmap(lambda a: a.cumsum(0), out_dims=1)(rows), right.cumsum(1).t()
    yield "vmap of a product", torch.func.vmap(torch.dot)(rows, rows + 1), (right * (right + 1)).sum(1)


def _of_gradients(here: RankContext) -> Iterator[Answer]:
    one, other = _two_rows(here)
    squares = torch.func.grad(lambda a, b: (a * b * b).sum(), argnums=1)
    yield "grad with argnums=1", squares(one, other), [4.0, -20.0, -6.0]
    yield "grad with argnums=0", torch.func.grad(lambda a, b: (a * b * b).sum())(one, other), [4.0, 25.0, 1.0]
    yield "grad of a grad", torch.func.grad(torch.func.grad(lambda a: a**3))(one[2]), 18.0
    yield "vmap of a grad", torch.func.vmap(torch.func.grad(lambda a: a**3))(one), [3.0, 12.0, 27.0]
    value, back = torch.func.vjp(lambda a: a * a, one)
    yield "vjp's value", value, [1.0, 4.0, 9.0]
    yield "vjp", back(other)[0], [4.0, -20.0, -6.0]
    yield "jacrev", torch.func.jacrev(lambda a: a * a.sum())(one), [[3.0, 1.0, 1.0], [-2.0, 0.0, -2.0], [3.0, 3.0, 5.0]]


@contextlib.contextmanager
def _without_scripted_rules() -> Iterator[None]:
    """Forward differentiation compiles rules for what has none (norms, softplus) by TorchScript when it is first asked for, a third of a second, unless that is off (torch/autograd/forward_ad.py).
    Nothing here needs them."""
    before = os.environ.get(_SCRIPTED)
    os.environ[_SCRIPTED] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SCRIPTED]
        else:
            os.environ[_SCRIPTED] = before


@_without_scripted_rules()
def _of_directions(here: RankContext) -> List[Answer]:
    one, way = _two_rows(here)
    value, slope = torch.func.jvp(lambda a: a**3, (one,), (way,))
    twice = [[3.0, 1.0, 1.0], [-2.0, 0.0, -2.0], [3.0, 3.0, 5.0]]
    return [
        ("jvp's value", value, [1.0, -8.0, 27.0]),
        ("jvp", slope, [6.0, 60.0, -27.0]),
        ("jacfwd", torch.func.jacfwd(lambda a: a * a.sum())(one), twice),
        ("hessian", torch.func.hessian(lambda a: (a**3).sum())(one), [[6.0, 0.0, 0.0], [0.0, -12.0, 0.0], [0.0, 0.0, 18.0]]),
    ]


def _of_modules(here: RankContext) -> Iterator[Answer]:
    layer = nn.Linear(3, 1).to(here.device)
    others = {"weight": torch.tensor([[2.0, 1.0, -1.0]], device=here.device), "bias": torch.tensor([4.0], device=here.device)}
    yield "functional_call", torch.func.functional_call(layer, others, (_two_rows(here)[0],)), [1.0]
