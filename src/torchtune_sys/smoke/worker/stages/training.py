"""Training as such: the loss falls as far as it must, and what was learned is right."""

from __future__ import annotations

import math
import time
from typing import Callable, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed
from torchtune_sys.smoke.worker.growth import Held, held_now, keeps_nothing
from torchtune_sys.smoke.worker.models import LEARNED, SmallConvNet, SmallTransformer, bars, loss_of, seeded, sentences

Batches = Callable[[int, int], Tuple[torch.Tensor, torch.Tensor]]
_STEPS = 50
_SENTENCES = 32
_LOOKS = (10, 30)
"""Steps before which it is looked at what the process holds; by the first of them all is allocated that training needs."""
_UNSEEN = 10**6
"""The seed of data that no training step had."""


def training_learns(here: RankContext) -> None:
    """Check that a transformer and a convolutional network learn in float32, and generalise to unseen data."""
    for name, make, batches in (("transformer", SmallTransformer, sentences), ("conv net", SmallConvNet, bars)):
        seeded(1)
        _learns(here, name, make().to(here.device), batches)


def _learns(here: RankContext, name: str, model: nn.Module, batches: Batches) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: List[float] = []
    held: List[Held] = []
    started = time.perf_counter()
    for step in range(_STEPS):
        if step in _LOOKS:
            held.append(held_now(here))
        optimizer.zero_grad()
        loss = loss_of(model, batches(_SENTENCES, step), here.device)
        loss.backward()
        losses.append(loss.item())
        finite(name, step, losses[-1], model)
        optimizer.step()
    keeps_nothing(name, _STEPS - _LOOKS[0], [*held, held_now(here)])
    here.measure("%s steps" % name, _STEPS / (time.perf_counter() - started), "1/s")
    still = [key for (key, now), was in zip(model.named_parameters(), before) if torch.equal(now, was)]
    if still:
        raise StageFailed("training-leaves-parameters", "%s: %d step(s) did not change %s" % (name, _STEPS, ", ".join(still)))
    _answers_right(here, name, model, batches, losses)


def finite(name: str, step: int, loss: float, model: nn.Module) -> None:
    """Raise StageFailed where a step's loss or a gradient is no finite number: the gradient first, or it is the next loss that is not."""
    if not math.isfinite(loss):
        raise StageFailed("loss-not-finite", "%s: the loss of step %d is %r" % (name, step, loss))
    for key, parameter in model.named_parameters():
        if parameter.grad is None:
            raise StageFailed("gradient-missing", "%s: %s has no gradient after step %d" % (name, key, step))
        if not bool(torch.isfinite(parameter.grad).all()):
            raise StageFailed("gradient-not-finite", "%s: the gradient of %s is not finite in step %d" % (name, key, step))


def _answers_right(here: RankContext, name: str, model: nn.Module, batches: Batches, losses: List[float]) -> None:
    unseen = batches(256, _UNSEEN)
    model.eval()
    with torch.no_grad():
        loss = loss_of(model, unseen, here.device).item()
        answers = model(unseen[0].to(here.device)).argmax(-1).to("cpu")
    here.measure("%s loss" % name, loss, "")
    wrong = int((answers != unseen[1]).sum().item())
    if not loss < LEARNED or wrong:
        raise StageFailed(
            "training-does-not-learn",
            "%s: the loss went from %.4g to %.4g in %d steps (below %.4g it has learned), %d of %d answers are wrong"
            % (name, losses[0], loss, _STEPS, LEARNED, wrong, answers.numel()),
        )
