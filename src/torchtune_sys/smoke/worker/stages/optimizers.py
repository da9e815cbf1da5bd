"""Optimizers, schedules and clipping, beside their formulas in float64."""

from __future__ import annotations

import copy
import inspect
import math
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed, seldom_used_is_right, small_integers
from torchtune_sys.smoke.worker.functions.combined import Answer, answers_are_right
from torchtune_sys.smoke.worker.functions.other_ways import optimizers_agree
from torchtune_sys.smoke.worker.functions.parameter_groups import groups_have_their_own
from torchtune_sys.smoke.worker.functions.seldom_optimizers import SELDOM_OPTIMIZERS, averages_follow
from torchtune_sys.smoke.worker.functions.tried import PASSED_SINCE, judged_where_tried

_OPTIMIZER_STEPS = 6
_CLEARINGS = 40
_OPTIMIZER_OFF = 2.0**-14
"""Rounding of float32 over six steps is below 2**-19. What is to be caught (momentum, decay or a correction that is left out) moves a
weight of size one by 1e-3 or more."""
_OPTIMIZER_OFF_LOW = 2.0**-5
"""Of bfloat16 weights of up to two (2**-8 of them each rounding) after a step in which the decay moves them by an eighth."""
EPOCHS_OF_SCHEDULE = 12
_WEIGHTS = 11
"""Parameters of an optimizer: foreach and fused take them as lists, in pieces."""
_TIMES_LARGE = 1200
_Formula = Callable[[torch.Tensor, torch.Tensor, Dict[str, Any], int], torch.Tensor]


def optimizers_follow_their_formulas(here: RankContext) -> None:
    """Check SGD with momentum, Adam, AdamW, learning-rate schedules and clipping against their formulas."""
    for name, options, formula in (
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}, _sgd),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, _sgd),
        ("Adam", {"lr": 0.05, "weight_decay": 0.05}, _adam),
        ("Adam", {"lr": 0.05, "amsgrad": True, "betas": (0.9, 0.5)}, _adam),  # by 0.999 the second moment would only grow here
        ("AdamW", {"lr": 0.05, "weight_decay": 0.1}, _adam_w),
    ):
        for way in ({}, {"foreach": True}, {"fused": True}):
            for turned in (False, True):
                _steps_as(here, name, {**options, **way}, formula, turned)
    for name, options, seldom in SELDOM_OPTIMIZERS:
        for way in ({}, {"foreach": True})[: 1 + (here.level != QUICK)]:
            _steps_as(here, name, {**options, **way}, seldom, False)
    averages_follow(here)
    judged_where_tried(groups_have_their_own, here, False, PASSED_SINCE.get(here.kind, ()))
    answers_are_right(_steps_as_asked(here), "optimizer-wrong")
    _clears(here)
    for name, schedule, formula_of_rate in schedules():
        _moves_as(name, schedule, formula_of_rate)
    _lowers_where_nothing_improves()
    _clips_values(here)
    if seldom_used_is_right() and here.level != QUICK:
        judged_where_tried(optimizers_agree, here)


def _weights_and_gradients(step: int) -> Tuple[torch.Tensor, torch.Tensor]:
    return (small_integers((5, 7), 90) + 0.5) / 4, (small_integers((5, 7), 91 + step) + 0.5) / 8


def _steps_as(here: RankContext, name: str, options: Dict[str, Any], formula: _Formula, turned: bool) -> None:
    """Compare some steps of as many weights as fill more than one piece of what is done at once. ``turned``: the weights' memory is transposed, as that of
    a layer that is another's turned round."""
    start, _ = _weights_and_gradients(0)
    count = _WEIGHTS + (here.level != QUICK and not turned)
    starts = [_as_weight(start, number) for number in range(count)]
    held = [torch.nn.Parameter((one.t().contiguous().t() if turned else one).to(here.device, copy=True)) for one in starts]
    try:
        optimizer = getattr(torch.optim, name)(held, **options)
    except (RuntimeError, TypeError):
        if "fused" in options or "foreach" in options:  # fused on the CPU since torch 2.4, and not for all
            return
        raise
    wanted, memory = _in_a_row(starts), dict(options)
    for step in range(_OPTIMIZER_STEPS):
        gradients = [_as_weight(_weights_and_gradients(step)[1], number) for number in range(count)]
        for one, gradient in zip(held, gradients):
            one.grad = torch.empty_like(one).copy_(gradient)  # autograd lays it out as the weights
        optimizer.step()
        wanted = formula(wanted, _in_a_row(gradients), memory, step + 1)
        apart = (_in_a_row(held) - wanted).abs()
        if not float(apart.max()) <= _OPTIMIZER_OFF:
            off = [float(each.max()) for each in apart.split([one.numel() for one in held])]
            words = ", ".join("%s %s" % pair for pair in options.items())
            words += ", transposed weights" if turned else ""
            wrong = [str(number) for number, one in enumerate(off) if not one <= _OPTIMIZER_OFF]
            which = "" if len(wrong) == len(off) else " for weights %s of %d" % (", ".join(wrong[:4]), len(off))
            seen = "step %d of %s (%s) is off by %.3g from its formula%s" % (step + 1, name, words, float(apart.max()), which)
            raise StageFailed("optimizer-wrong", seen)


def _in_a_row(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the numbers of all weights in float64: formulas take them one by one, whosever they are."""
    return torch.cat([one.detach().cpu().reshape(-1) for one in weights]).double()


def _as_weight(one: torch.Tensor, number: int) -> torch.Tensor:
    """Return what is like it for each weight; the last is large: several threads and blocks share it."""
    return one.roll(number) if number < _WEIGHTS else one.repeat(_TIMES_LARGE, 1)


def _sgd(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], step: int) -> torch.Tensor:
    """https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html, without dampening."""
    gradient = gradient + memory.get("weight_decay", 0.0) * weights
    memory["speed"] = gradient if step == 1 else memory["momentum"] * memory["speed"] + gradient
    way = gradient + memory["momentum"] * memory["speed"] if memory.get("nesterov") else memory["speed"]
    return weights - memory["lr"] * way


def _adam(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], step: int) -> torch.Tensor:
    """Kingma, Ba: Adam (arXiv 1412.6980), algorithm 1; the decay is added to the gradient."""
    return _adam_of(weights, gradient + memory.get("weight_decay", 0.0) * weights, memory, step)


def _adam_w(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], step: int) -> torch.Tensor:
    """Loshchilov, Hutter: Decoupled Weight Decay Regularization (arXiv 1711.05101), algorithm 2."""
    return _adam_of(weights * (1 - memory["lr"] * memory["weight_decay"]), gradient, memory, step)


def _adam_of(weights: torch.Tensor, gradient: torch.Tensor, memory: Dict[str, Any], step: int) -> torch.Tensor:
    """With amsgrad by the largest second moment so far (arXiv 1904.09237)."""
    slow, slower = memory.get("betas", (0.9, 0.999))
    mean = slow * memory.get("mean", torch.zeros_like(gradient)) + (1 - slow) * gradient
    square = slower * memory.get("square", torch.zeros_like(gradient)) + (1 - slower) * gradient**2
    largest = torch.maximum(memory.get("largest", square), square) if memory.get("amsgrad") else square
    memory.update(mean=mean, square=square, largest=largest)
    return weights - memory["lr"] * (mean / (1 - slow**step)) / ((largest / (1 - slower**step)).sqrt() + 1e-8)


def _steps_as_asked(here: RankContext) -> Iterator[Answer]:
    first, later = (torch.nn.Parameter(torch.ones(2, device=here.device)) for _ in range(2))
    optimizer = torch.optim.SGD([first], lr=0.5, weight_decay=0.5)
    optimizer.add_param_group({"params": [later], "lr": 0.25, "weight_decay": 0.0})
    told: List[float] = []
    for hook in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        hook(lambda *_: told.append(float(first.detach()[0])))
    for one in (first, later):
        one.grad = torch.ones_like(one)
    loss = optimizer.step(lambda: torch.tensor(7.0))
    yield "a group of parameters that was added later (add_param_group) steps with its own rate", later, [0.75, 0.75]
    yield "the first group", first, [0.25, 0.25]
    yield "the weights that hooks see before and after a step", told, [1, 0.25]
    yield "the loss that a step with a closure returns", loss, 7
    yield from _signs(here)
    if here.has_bfloat16():
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            counted = torch.nn.Parameter(torch.ones(2, device=here.device, dtype=torch.bfloat16))
            counted.grad = torch.ones_like(counted)
            before, loaded = (kind([counted]) for _ in range(2))
            before.step()
            before.state[counted]["step"].fill_(300.0)
            loaded.load_state_dict(before.state_dict())
            loaded.step()
            yield (
                "the steps that %s counts for weights of bfloat16, loaded after the 300th" % kind.__name__,
                loaded.state[counted]["step"],
                301,
            )
    own = copy.deepcopy(first)
    with torch.no_grad():
        first.zero_()
    yield "a copy of a weight (copy.deepcopy) once the weight is another", own, [0.25, 0.25]


def _signs(here: RankContext) -> Iterator[Answer]:
    """Yield what each optimizer makes of a gradient when it is to maximise, and of the opposite one when not."""
    kinds = (getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax"))
    for kind in (kind for kind in kinds if "maximize" in inspect.signature(kind).parameters):
        up, down = (torch.nn.Parameter(torch.ones(2, device=here.device)) for _ in range(2))
        for one, sign in ((up, 1.0), (down, -1.0)):
            optimizer = kind([one], lr=0.5, maximize=sign > 0)
            for _ in range(2):
                one.grad = torch.full_like(one, sign)
                optimizer.step()
        yield "the way that %s goes with maximize=True" % kind.__name__, up.detach(), down.detach().double()


def _clears(here: RankContext) -> None:
    """Check every optimizer that is tried often enough to meet what happens at some calls alone, in each of its groups."""
    weights = [torch.nn.Parameter(torch.ones(3, device=here.device)) for _ in range(2)]
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer: torch.optim.Optimizer = kind([{"params": [one]} for one in weights], lr=0.1)
        left = 0
        for turn in range(_CLEARINGS):
            (weights[0] * weights[1]).sum().backward()
            optimizer.zero_grad(set_to_none=turn % 2 == 0)
            left += any(one.grad is not None and bool(one.grad.any()) for one in weights)
            for one in weights:
                one.grad = None
        if left:
            seen = "zero_grad() leaves gradients at %d of %d calls: each step takes those of the steps before, too"
            raise StageFailed("gradients-not-cleared", seen % (left, _CLEARINGS))


def schedules() -> Iterator[Tuple[str, Callable[..., Any], Callable[[int], float]]]:
    """Yield names, schedules of a rate of 1 (with ``last_epoch``, where that says at which rate they begin), and the rate after so many epochs."""
    kinds = torch.optim.lr_scheduler
    yield "StepLR", lambda one: kinds.StepLR(one, 3, gamma=0.5), lambda epoch: 0.5 ** (epoch // 3)
    yield (
        "CosineAnnealingLR",
        lambda one: kinds.CosineAnnealingLR(one, EPOCHS_OF_SCHEDULE, eta_min=0.1),
        lambda epoch: 0.1 + 0.45 * (1 + math.cos(math.pi * epoch / EPOCHS_OF_SCHEDULE)),
    )
    yield "LinearLR", lambda one: kinds.LinearLR(one, 0.25, 1.0, 6), lambda epoch: 0.25 + 0.75 * min(epoch, 6) / 6
    yield "ExponentialLR", lambda one: kinds.ExponentialLR(one, 0.9), lambda epoch: 0.9**epoch
    yield (
        "MultiStepLR",
        lambda one: kinds.MultiStepLR(one, [2, 5], gamma=0.1),
        lambda epoch: 0.1 ** ((epoch >= 2) + (epoch >= 5)),
    )
    yield (
        "CosineAnnealingWarmRestarts",
        lambda one, **more: kinds.CosineAnnealingWarmRestarts(one, 4, 2, **more),
        lambda epoch: 0.5 * (1 + math.cos(math.pi * (epoch / 4 if epoch < 4 else (epoch - 4) % 8 / 8))),
    )
    yield (
        "OneCycleLR",
        lambda one: kinds.OneCycleLR(one, 1.0, total_steps=EPOCHS_OF_SCHEDULE + 1, pct_start=5 / 13, cycle_momentum=False),
        _one_cycle,
    )
    yield (
        "SequentialLR",
        lambda one: kinds.SequentialLR(one, [kinds.LinearLR(one, 0.25, 1.0, 3), kinds.CosineAnnealingLR(one, 9)], [3]),
        lambda epoch: 0.25 + 0.25 * epoch if epoch < 3 else 0.5 * (1 + math.cos(math.pi * (epoch - 3) / 9)),
    )
    yield (
        "PolynomialLR",
        lambda one: kinds.PolynomialLR(one, 10, power=2.0),
        lambda epoch: (1 - min(epoch, 10) / 10) ** 2,
    )
    yield (
        "LambdaLR",
        lambda one, **more: kinds.LambdaLR(one, lambda epoch: 1 / (1 + epoch), **more),
        lambda epoch: 1 / (1 + epoch),
    )


def _one_cycle(epoch: int) -> float:
    """From 1/25 up to 1 in four steps, then to a ten thousandth of where it began; along cosines (torch's defaults)."""
    low, last = 1 / 25, 1 / 25 / 1e4
    if epoch <= 4:
        return low + (1 - low) * (1 - math.cos(math.pi * epoch / 4)) / 2
    return last + (1 - last) * (1 + math.cos(math.pi * (epoch - 4) / (EPOCHS_OF_SCHEDULE - 4))) / 2


def _lowers_where_nothing_improves() -> None:
    """After more than two steps that are no better than the best the rate is halved, and counting begins anew."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    for step in range(8):
        schedule.step(1.0)
        wanted = 0.5 ** (step // 3)
        found = optimizer.param_groups[0]["lr"]
        if found != wanted:
            seen = "ReduceLROnPlateau: after %d losses without improvement the rate is %g, where it must be %g"
            raise StageFailed("schedule-wrong", seen % (step, found, wanted))


def _moves_as(name: str, schedule: Callable[..., Any], rate: Callable[[int], float]) -> None:
    """Check each rate from the beginning, and of one that is made anew in the middle (last_epoch=), as a training does that was interrupted."""
    for first in (0, 6)[: len(inspect.signature(schedule).parameters)]:  # where it takes last_epoch
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate(first - 1) if first else 1.0)
        optimizer.param_groups[0]["initial_lr"] = 1.0
        if first:
            name += " with last_epoch=%d" % (first - 1)
        _rates_from(first, name, optimizer, schedule(optimizer, **({"last_epoch": first - 1} if first else {})), rate)


def _rates_from(first: int, name: str, optimizer: torch.optim.Optimizer, moved: Any, rate: Callable[[int], float]) -> None:
    for epoch in range(first, EPOCHS_OF_SCHEDULE + 1):
        found = optimizer.param_groups[0]["lr"]
        if not abs(found - rate(epoch)) <= 1e-9:
            seen = "%s: after %d step(s) the rate is %.6g, where it must be %.6g" % (name, epoch, found, rate(epoch))
            raise StageFailed("schedule-wrong", seen)
        optimizer.step()
        moved.step()


def _parameters_with(gradients: List[torch.Tensor], here: RankContext) -> List[torch.nn.Parameter]:
    held = [torch.nn.Parameter(torch.zeros_like(one, device=here.device)) for one in gradients]
    for parameter, gradient in zip(held, gradients):
        parameter.grad = gradient.to(here.device, copy=True)
    return held


def _clips_values(here: RankContext) -> None:
    """Clip each value, and all gradients together by each norm: the largest is the share of all that the limit leaves, for every parameter the same."""
    gradients = [small_integers((4, 3), 97), small_integers((5,), 98)]
    numbers = [abs(value) for gradient in gradients for value in gradient.flatten().tolist()]
    norms = (1.0, sum(numbers)), (2.0, math.sqrt(sum(value * value for value in numbers))), (math.inf, max(numbers))
    nothing = [torch.zeros(3), torch.zeros(())], (1.0, 2.0, math.inf)  # of a batch without words
    for kind, norm, given in (*((*one, gradients) for one in norms), *((kind, 0.0, nothing[0]) for kind in nothing[1])):
        for limit in (norm / 2 or 0.5, norm * 2 or 2.0):
            held = _parameters_with(given, here)
            told = float(torch.nn.utils.clip_grad_norm_(held, limit, norm_type=kind))
            share = min(1.0, limit / norm) if norm else 1.0
            off = max(float((one.grad.cpu() - share * gradient).abs().max()) for one, gradient in zip(held, given))
            if not (abs(told - norm) <= _OPTIMIZER_OFF * norm and off <= _OPTIMIZER_OFF * max(numbers)):
                words = (limit, kind, norm, told, off)
                seen = (
                    "clip_grad_norm_(%.6g, norm_type=%g) of gradients of norm %.6g tells %.6g, and leaves one that is off by %.3g"
                )
                raise StageFailed("clip-wrong", seen % words)
    if here.has_bfloat16():
        held = _parameters_with(gradients, here)
        held[1] = torch.nn.Parameter(held[1].detach().bfloat16())
        held[1].grad = gradients[1].to(here.device, torch.bfloat16)
        norm = math.sqrt(sum(value * value for value in numbers))
        told = float(torch.nn.utils.clip_grad_norm_(held, norm / 2, norm_type=2.0))
        off = max(float((one.grad.cpu().float() - gradient / 2).abs().max()) for one, gradient in zip(held, gradients))
        if not max(abs(told - norm) / norm, off / max(numbers)) <= _OPTIMIZER_OFF_LOW:
            seen = "clip_grad_norm_(%.6g) of gradients of norm %.6g in float32 and bfloat16 tells %.6g, and leaves one that is off by %.3g"
            raise StageFailed("clip-wrong", seen % (norm / 2, norm, told, off))
    held = _parameters_with(gradients, here)
    torch.nn.utils.clip_grad_value_(held, 2.0)
    for parameter, gradient in zip(held, gradients):
        wanted = torch.tensor([max(-2.0, min(2.0, value)) for value in gradient.flatten().tolist()]).view(gradient.shape)
        if not torch.equal(parameter.grad.cpu(), wanted):
            raise StageFailed("clip-wrong", "clip_grad_value_(2) leaves a gradient of %g" % float(parameter.grad.abs().max()))
