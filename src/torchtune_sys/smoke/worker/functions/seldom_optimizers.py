"""Optimizers beside SGD and Adam, by their formulas, and running averages of weights."""

from __future__ import annotations

import logging
import math
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.optim import swa_utils

from torchtune_sys.smoke.worker.context import THOROUGH, RankContext, StageFailed, torch_has_reached

_AVERAGED = 5
_AWAY_COMPILED_STEP = 2.0**-16
"""Weights below 4, and steps of a sixteenth and more: rounding is 2**-21."""
_Step = Callable[[torch.Tensor, torch.Tensor, Dict[str, Any], int], torch.Tensor]


def _mean_of(memory: Dict[str, Any], name: str, value: torch.Tensor, share: float) -> torch.Tensor:
    memory[name] = share * memory.get(name, torch.zeros_like(value)) + (1 - share) * value
    return memory[name]


def _rmsprop(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], _step: int) -> torch.Tensor:
    """https://docs.pytorch.org/docs/stable/generated/torch.optim.RMSprop.html, without momentum."""
    return weights - memory["lr"] * gradient / (_mean_of(memory, "square", gradient**2, 0.99).sqrt() + 1e-8)


def _adagrad(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], _step: int) -> torch.Tensor:
    """Duchi, Hazan, Singer: Adaptive Subgradient Methods (JMLR 12, 2011)."""
    memory["square"] = memory.get("square", 0.0) + gradient**2
    return weights - memory["lr"] * gradient / (memory["square"].sqrt() + 1e-10)


def _adamax(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], step: int) -> torch.Tensor:
    """arXiv 1412.6980, algorithm 2."""
    mean = _mean_of(memory, "mean", gradient, 0.9)
    memory["largest"] = torch.maximum(0.999 * memory.get("largest", torch.zeros_like(gradient)), gradient.abs() + 1e-8)
    return weights - memory["lr"] / (1 - 0.9**step) * mean / memory["largest"]


def _adadelta(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], _step: int) -> torch.Tensor:
    """Zeiler: ADADELTA (arXiv 1212.5701), algorithm 1."""
    square, before = _mean_of(memory, "square", gradient**2, 0.9), memory.get("moved", torch.zeros_like(gradient))
    way = (before + 1e-6).sqrt() / (square + 1e-6).sqrt() * gradient
    _mean_of(memory, "moved", way**2, 0.9)
    return weights - memory["lr"] * way


def _nadam(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], step: int) -> torch.Tensor:
    """Dozat: Incorporating Nesterov Momentum into Adam (2016), with torch's decay of the momentum, 0.004."""
    now, then = (0.9 * (1 - 0.5 * 0.96 ** ((step + more) * 0.004)) for more in (0, 1))
    memory["product"] = memory.get("product", 1.0) * now
    mean, square = _mean_of(memory, "mean", gradient, 0.9), _mean_of(memory, "square", gradient**2, 0.999)
    way = (1 - now) / (1 - memory["product"]) * gradient + then / (1 - memory["product"] * then) * mean
    return weights - memory["lr"] * way / ((square / (1 - 0.999**step)).sqrt() + 1e-8)


def _radam(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], step: int) -> torch.Tensor:
    """Liu and others: On the Variance of the Adaptive Learning Rate (arXiv 1908.03265), algorithm 2."""
    mean, square = _mean_of(memory, "mean", gradient, 0.9) / (1 - 0.9**step), _mean_of(memory, "square", gradient**2, 0.999)
    longest = 2 / (1 - 0.999) - 1
    length = longest - 2 * step * 0.999**step / (1 - 0.999**step)
    if length <= 5:
        return weights - memory["lr"] * mean
    share = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
    return weights - memory["lr"] * mean * share * math.sqrt(1 - 0.999**step) / (square.sqrt() + 1e-8)


def _rprop(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], _step: int) -> torch.Tensor:
    """https://docs.pytorch.org/docs/stable/generated/torch.optim.Rprop.html: a weight whose gradient has turned stays where it is."""
    turned = (gradient * memory.get("before", torch.zeros_like(gradient))).sign()
    size = memory.get("size", torch.full_like(gradient, memory["lr"])) * torch.where(
        turned < 0, 0.5, torch.where(turned > 0, 1.2, 1.0)
    )
    memory["size"] = size.clamp(*memory["step_sizes"])
    memory["before"] = torch.where(turned < 0, torch.zeros_like(gradient), gradient)
    return weights - memory["before"].sign() * memory["size"]


SELDOM_OPTIMIZERS: Tuple[Tuple[str, Dict[str, Any], _Step], ...] = (
    ("RMSprop", {"lr": 0.01}, _rmsprop),
    ("Adagrad", {"lr": 0.1}, _adagrad),
    ("Adamax", {"lr": 0.05}, _adamax),
    ("Adadelta", {"lr": 1.0}, _adadelta),
    ("NAdam", {"lr": 0.05}, _nadam),
    ("RAdam", {"lr": 0.05}, _radam),
    ("Rprop", {"lr": 0.05, "step_sizes": (0.04, 0.055)}, _rprop),
)


def averages_follow(here: RankContext) -> None:
    """Check the mean of weights, and the one that forgets (EMA)."""
    kinds: List[Tuple[str, Dict[str, Any], Callable[[List[float]], float]]] = [
        ("AveragedModel", {}, lambda held: sum(held) / len(held))
    ]
    if hasattr(swa_utils, "get_ema_multi_avg_fn"):  # torch 2.0
        kinds.append(("AveragedModel (EMA)", {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.75)}, _forgetting))
    for name, options, formula in kinds:
        model = nn.Linear(2, 2).to(here.device)
        averaged = swa_utils.AveragedModel(model, **options)
        held: List[float] = []
        for turn in range(_AVERAGED):
            held.append(float((turn * 3) % 5 - 2))
            with torch.no_grad():
                for value in model.parameters():
                    value.fill_(held[-1])
            averaged.update_parameters(model)
        for value in averaged.module.parameters():
            off = float((value.detach().cpu().double() - formula(held)).abs().max())
            if not off <= 1e-5:
                seen = "%s: after %d updates the weights are off by %.3g from the average of all that they were"
                raise StageFailed("optimizer-wrong", seen % (name, _AVERAGED, off))
    _buffers_are_averaged(here)


def _buffers_are_averaged(here: RankContext) -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("seen", torch.ones(1))
    model.to(here.device)
    averaged = swa_utils.AveragedModel(model, use_buffers=True)
    for value in (1.0, 4.0):
        model.seen.fill_(value)
        averaged.update_parameters(model)
    found = float(averaged.module.seen)
    if found != 2.5:
        raise StageFailed("optimizer-wrong", "AveragedModel(use_buffers=True): a buffer that was 1 and 4 is %g, not 2.5" % found)


def _forgetting(held: List[float]) -> float:
    found = held[0]
    for one in held[1:]:
        found = 0.75 * found + 0.25 * one
    return found


def compiled_steps_agree(here: RankContext) -> None:
    """Check that an optimizer's compiled step (``torch.compile`` of what calls ``step``) follows rate and gradients as they change. Only at ``--thorough``: it takes four CPU seconds where
    nothing was compiled before, and to trace it alone, without code, nearly two."""
    if here.level != THOROUGH or not torch_has_reached(2, 13):  # before, it was never seen
        return
    held = [nn.Parameter(torch.arange(6.0, device=here.device).view(2, 3) / 4) for _ in range(2)]
    steppers = [torch.optim.AdamW([one], lr=torch.tensor(0.25, device=here.device), weight_decay=0.25) for one in held]
    log = logging.getLogger("torch._dynamo")
    before = log.level
    log.setLevel(logging.ERROR)  # it tells that the profiler's name of a step is left out
    try:
        compiled = torch.compile(steppers[0].step)
        for turn, rate in enumerate((0.25, 0.125, 0.0625)):
            for one, stepper in zip(held, steppers):
                one.grad = torch.full_like(one, 1.0 + turn)
                if turn == 2:  # a schedule fills the tensor that is there, a loop of one's own puts another one there
                    stepper.param_groups[0]["lr"] = torch.tensor(rate, device=here.device)
                else:
                    stepper.param_groups[0]["lr"].fill_(rate)
            compiled()
            steppers[1].step()
            off = float((held[0] - held[1]).detach().abs().max())
            if not off <= _AWAY_COMPILED_STEP:
                seen = (
                    "step %d of a compiled AdamW, at a rate of %g, leaves weights that are off by %.3g from the uncompiled step's"
                )
                raise StageFailed("compiled-differs", seen % (turn + 1, rate, off))
    finally:
        log.setLevel(before)
