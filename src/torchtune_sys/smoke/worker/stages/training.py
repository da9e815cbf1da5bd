"""Training as such: the loss falls as far as it must, and what was learned is right."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import Callable, List, NamedTuple, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed
from torchtune_sys.smoke.worker.models import LEARNED, SmallConvNet, SmallTransformer, bars, loss_of, seeded, sentences

Batches = Callable[[int, int], Tuple[torch.Tensor, torch.Tensor]]
_STEPS = 50
_SENTENCES = 32
_LOOKS = (10, 30)
"""Steps before which it is looked at what the process holds; by the first of them all is allocated that training needs."""
_MEMORY_KEPT = 8 << 20
"""In each part of the steps, the last of which has 20: less than half a mebibyte a step is left to the allocators."""
_DESCRIPTORS_KEPT = 10
_UNSEEN = 10**6
"""The seed of data that no training step had."""


def training_learns(here: RankContext) -> None:
    """Check that a transformer and a convolutional net, in float32, learn what they are shown, and answer right what they were not shown."""
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
            held.append(_held_now(here))
        optimizer.zero_grad()
        loss = loss_of(model, batches(_SENTENCES, step), here.device)
        loss.backward()
        losses.append(loss.item())
        _finite(name, step, losses[-1], model)
        optimizer.step()
    _keeps_nothing(name, [*held, _held_now(here)])
    here.measure("%s steps" % name, _STEPS / (time.perf_counter() - started), "1/s")
    still = [key for (key, now), was in zip(model.named_parameters(), before) if torch.equal(now, was)]
    if still:
        raise StageFailed("training-leaves-parameters", "%s: %d step(s) did not change %s" % (name, _STEPS, ", ".join(still)))
    _answers_right(here, name, model, batches, losses)


class Held(NamedTuple):
    """What this process holds."""

    memory: int
    """Bytes of the host."""
    gpu_memory: int
    descriptors: int


def _held_now(here: RankContext) -> Held:
    pages = 0
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    gpu = torch.cuda.memory_allocated(here.device) if here.kind == "cuda" else 0
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), gpu, len(os.listdir("/proc/self/fd")))


def _keeps_nothing(name: str, looks: List[Held]) -> None:
    """All steps are alike: after the first ones (_LOOKS) a training that holds more and more will end for lack of it."""
    steps = _STEPS - _LOOKS[0]
    pairs = [(looks[number], looks[number + 1]) for number in range(len(looks) - 1)]
    for what, least, growth in (
        ("the host's memory", _MEMORY_KEPT, [after.memory - before.memory for before, after in pairs]),
        ("the GPU's memory", _MEMORY_KEPT, [after.gpu_memory - before.gpu_memory for before, after in pairs]),
    ):
        if min(growth) > least:
            seen = "%s: %d steps kept %.0f MiB more of %s, as much in the last ones as in the first"
            raise StageFailed("memory-grows", seen % (name, steps, sum(growth) / 2**20, what))
    opened = [after.descriptors - before.descriptors for before, after in pairs]
    if min(opened) >= _DESCRIPTORS_KEPT:
        raise StageFailed("descriptors-grow", "%s: %d steps left %d more descriptors open" % (name, steps, sum(opened)))


def _finite(name: str, step: int, loss: float, model: nn.Module) -> None:
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
