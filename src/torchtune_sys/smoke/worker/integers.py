"""A net of integers: its outputs and gradients are exact, so there is one right answer whatever the order of additions."""

from __future__ import annotations

from typing import Dict, Sequence

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, small_integers
from torchtune_sys.smoke.worker.models import Batch

BATCH = 8
ANSWERS = 8
BRANCHES = ("even", "odd")
STEP_SIZE = 0.0625
"""A power of two, as the batch is: dividing and scaling by them is exact."""


class IntegerNet(nn.Module):
    """Weights of -1, 0 and 1 in two layers with ReLU and a last one. With 512 inputs of the same kind no value that enters a product
    exceeds 2048, which even TF32 keeps, and no sum 2**24. ``even`` and ``odd`` are branches, one of which
    a rank may leave unused."""

    def __init__(self, seed: int, width: int = 512, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shapes = {"first": (width, width), "second": (width, width), "last": (ANSWERS, width)}
        shapes.update(dict.fromkeys(BRANCHES, (ANSWERS, width)))
        for number, (name, (outputs, inputs)) in enumerate(shapes.items()):
            layer = nn.Linear(inputs, outputs, dtype=dtype)
            with torch.no_grad():
                layer.weight.copy_(small_integers((outputs, inputs), 100 * seed + number, -1, 2))
                layer.bias.copy_(small_integers((outputs,), 100 * seed + 50 + number, -1, 2))
            self.add_module(name, layer)
        self.register_buffer("mark", small_integers((5,), seed, -100, 100))

    def forward(self, inputs: torch.Tensor, branches: Sequence[str] = ()) -> torch.Tensor:
        answer = self.last(torch.relu(self.second(torch.relu(self.first(inputs)))))
        for branch in branches or BRANCHES:
            answer = answer + getattr(self, branch)(inputs)
        return answer


def integer_batch(rank: int, turn: int = 0, width: int = 512) -> Batch:
    """Return a rank's own inputs, and the targets that its outputs are multiplied with."""
    seed = 100000 + 1000 * rank + turn
    return small_integers((BATCH, width), 2 * seed, -1, 2), small_integers((BATCH, ANSWERS), 2 * seed + 1, -1, 2)


def linear_loss(answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over the batch of the products: its gradients are integers over the batch's size."""
    return (answers * targets).sum() / answers.shape[0]


def gradients_alone(
    net: IntegerNet, batches: Sequence[Batch], samples: int, branches: Sequence[str] = ()
) -> Dict[str, torch.Tensor]:
    """Return the right answer: on the CPU, in float64, without anything distributed. ``samples`` is what the sum over the batches is divided
    by; with ``branches`` named, each batch goes through its own."""
    held = {name: value.detach().cpu().double().requires_grad_() for name, value in net.named_parameters()}

    def layer(name: str, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, held[name + ".weight"], held[name + ".bias"])

    for (inputs, targets), branch in zip(batches, branches or [""] * len(batches)):
        wide = inputs.double()
        answer = layer("last", torch.relu(layer("second", torch.relu(layer("first", wide)))))
        for taken in (branch,) if branch else BRANCHES:
            answer = answer + layer(taken, wide)
        (answer * targets).sum().backward()
    return {name: gradient_of(value) / samples for name, value in held.items()}


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """None is what a parameter has that nobody used."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()


def exact(here: RankContext) -> bool:
    """Whether dividing by the number of ranks rounds nothing."""
    return here.world & (here.world - 1) == 0


def furthest(here: RankContext, found: Dict[str, torch.Tensor], wanted: Dict[str, torch.Tensor]) -> str:
    """Return the parameter that is most wrong and by how much; "" if all are right.

    With a power of two of ranks no bit may differ. Else each rank's share is rounded when it is divided, and after each addition:
    (world + 2) roundings of 2**-24 of values that are at most a few times the largest wanted. The smallest fault to be caught,
    a share of one rank that is lost or counted twice, changes most elements by 1/world of it: ten thousand times as much.
    """
    worst, words = 0.0, ""
    for name, right in wanted.items():
        tolerance = 0.0 if exact(here) else 8 * (here.world + 2) * 2.0**-24 * float(right.abs().max())
        off = (found[name].detach().cpu().double() - right).abs()
        off = torch.where(off.isnan(), torch.full_like(off, float("inf")), off)
        if float(off.max()) > max(tolerance, worst):
            worst = float(off.max())
            place = int(off.argmax())
            figures = (
                name,
                int((off > tolerance).sum()),
                off.numel(),
                float(found[name].detach().flatten()[place]),
                float(right.flatten()[place]),
            )
            words = "%s: %d of %d elements are wrong, one is %.9g, not %.9g" % figures
    return words
