"""The scaler that float16 needs, beside a training without one."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, small_integers
from torchtune_sys.smoke.worker.functions.combined import answers_are_right
from torchtune_sys.smoke.worker.models import loss_of, seeded


def new_scaler(here: RankContext, scale: float, interval: int, *, enabled: bool = True) -> Any:
    """Return a scaler for this device. Powers of two: scaling back and forth changes no bit of a gradient."""
    settings: Dict[str, Any] = {"init_scale": scale, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": interval}
    settings["enabled"] = enabled
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(here.kind, **settings)
    return torch.cuda.amp.GradScaler(**settings)


_INTERVAL, _GRADIENTS = 3, 45
_SCRIPT = ("clip", "step", "step", "inf", "step", "step", "nan", "clip", "step", "step")
"""What becomes of each round; after three good ones in a row the scale doubles, after a bad one it is halved. The first looks at what unscale_ leaves, before a step can."""


def scaler_skips_and_grows(here: RankContext) -> None:
    """Beside a twin that trains without a scaler, all in float32: the same bits after every step, none changed by a bad one."""
    model, optimizer = _perceptron(here)
    twin, twin_optimizer = _perceptron(here)
    scale, good = 2.0**10, 0
    scaler = new_scaler(here, scale, _INTERVAL)
    for number, what in enumerate(_SCRIPT):
        where = "round %d (%s)" % (number, what)
        batch = _points(number)
        for one in (optimizer, twin_optimizer):
            one.zero_grad()
        scaler.scale(loss_of(model, batch, here.device)).backward()
        loss_of(twin, batch, here.device).backward()
        if what == "clip":
            scaler.unscale_(optimizer)
            _same_gradients(where, model, twin)
            _clips(where, model, twin)
        if what in ("inf", "nan"):
            list(model.parameters())[2].grad.view(-1)[-1] = float(what)  # of the second group
        before = _all_bits(model, optimizer)
        scaler.step(optimizer)
        scaler.update()
        good = good + 1 if what in ("step", "clip") else 0
        if good:
            twin_optimizer.step()
            _stepped(where, before, _all_bits(model, optimizer), _all_bits(twin, twin_optimizer))
        else:
            _left_alone(where, before, _all_bits(model, optimizer))
        scale = scale * (2.0 if good and good % _INTERVAL == 0 else 1.0 if good else 0.5)
        if scaler.get_scale() != scale:
            raise StageFailed(
                "scaler-scale-wrong", "after %s the scale is %g, where it must be %g" % (where, scaler.get_scale(), scale)
            )


def each_optimizer_skips_alone(here: RankContext) -> None:
    """As adversarial networks have two. One loss is of two parts, whose gradients add up before they are looked at."""
    weights = [torch.nn.Parameter(torch.ones(2, device=here.device)) for _ in range(2)]
    optimizers = [torch.optim.SGD([one], lr=0.5) for one in weights]
    scaler = new_scaler(here, 2.0**4, 1000)
    for _ in range(2):
        scaler.scale(sum(one.sum() for one in weights) / 2).backward()
    several = scaler.scale([torch.full((1,), 1.0 + number, device=here.device) for number in range(3)])
    answers_are_right([("three losses that are scaled at once", torch.cat(several), [16.0, 32.0, 48.0])], "scaler-scale-wrong")
    _each_gradient_counts(here)
    weights[0].grad[1] = float("inf")
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    where = "with two optimizers, and an inf among the first one's gradients"
    answers_are_right([("%s, its weights" % where, weights[0], [1, 1])], "scaler-never-skips")
    answers_are_right([("%s, the second one's weights" % where, weights[1], [0.5, 0.5])], "scaler-changes-step")
    answers_are_right([("%s, the scale" % where, scaler.get_scale(), 2**3)], "scaler-scale-wrong")
    _does_nothing_switched_off(here)


def _does_nothing_switched_off(here: RankContext) -> None:
    """Scripts for float16 and bfloat16 alike have a scaler, which is off (enabled=False) for the second."""
    weight, scaler = torch.nn.Parameter(torch.ones(2, device=here.device)), new_scaler(here, 2.0**4, 1000, enabled=False)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    loss = scaler.scale(weight.sum())
    loss.backward()
    slope = weight.grad.clone()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    where = "with a scaler that is switched off"
    pairs = [("%s, the loss" % where, loss.detach(), 2), ("%s, the gradient" % where, slope, [1, 1])]
    answers_are_right([*pairs, ("%s, the weights" % where, weight, [0.5, 0.5])], "scaler-scale-wrong")


def _each_gradient_counts(here: RankContext) -> None:
    """Check that one number that is not finite, in whichever of many gradients, keeps all weights from their step: kernels take lists of tensors in parts."""
    for place in (0, _GRADIENTS // 2, _GRADIENTS - 1):
        held = [torch.nn.Parameter(torch.ones(1 + number % 3, device=here.device)) for number in range(_GRADIENTS)]
        optimizer, scaler = torch.optim.SGD(held, lr=0.5), new_scaler(here, 2.0, 1000)
        scaler.scale(sum(one.sum() for one in held)).backward()
        held[place].grad[-1] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        where = "with an inf in gradient %d of %d" % (place + 1, _GRADIENTS)
        answers_are_right(
            [("%s, the weights" % where, sum(one.sum() for one in held), sum(one.numel() for one in held))], "scaler-never-skips"
        )
        answers_are_right([("%s, the scale" % where, scaler.get_scale(), 1)], "scaler-scale-wrong")


def _perceptron(here: RankContext) -> Tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Nothing in it adds in an order that varies (an embedding's gradient does on GPUs)."""
    seeded(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(here.device)
    groups = [{"params": list(layer.parameters())} for layer in (model[0], model[2])]
    return model, torch.optim.AdamW(groups, lr=1e-2)


def _points(seed: int) -> Tuple[torch.Tensor, torch.Tensor]:
    points = small_integers((32, 16), seed)
    return points, points[:, :4].argmax(1)


def _all_bits(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, torch.Tensor]:
    """Return the parameters and whatever the optimizer remembers of them."""
    held = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            held["%s of %s" % (key, name)] = torch.as_tensor(value).detach().clone()
    return held


def _differing(one: Dict[str, torch.Tensor], other: Dict[str, torch.Tensor]) -> List[str]:
    return [
        name for name in sorted({*one, *other}) if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]


def _left_alone(where: str, before: Dict[str, torch.Tensor], after: Dict[str, torch.Tensor]) -> None:
    changed = _differing(before, after)
    if changed:
        raise StageFailed(
            "scaler-never-skips",
            "%s had a gradient that is not finite in the second group of parameters, yet it changed %s"
            % (where, ", ".join(changed)),
        )


def _stepped(
    where: str, before: Dict[str, torch.Tensor], after: Dict[str, torch.Tensor], wanted: Dict[str, torch.Tensor]
) -> None:
    if not _differing(before, after):
        raise StageFailed("scaler-always-skips", "%s was left out, though all gradients are finite" % where)
    changed = _differing(after, wanted)
    if changed:
        raise StageFailed("scaler-changes-step", "%s with a scaler is not that without: %s" % (where, ", ".join(changed)))


def _same_gradients(where: str, model: torch.nn.Module, twin: torch.nn.Module) -> None:
    for (name, parameter), other in zip(model.named_parameters(), twin.parameters()):
        if not torch.equal(parameter.grad, other.grad):
            away = float((parameter.grad - other.grad).abs().max())
            raise StageFailed("scaler-unscale-wrong", "%s: unscale_ leaves the gradient of %s off by %g" % (where, name, away))


def _clips(where: str, model: torch.nn.Module, twin: torch.nn.Module) -> None:
    """clip_grad_norm_ against the norm of the twin's gradients in float64, at half of it so that it must act."""
    norm = sum(float((parameter.grad.double() ** 2).sum()) for parameter in twin.parameters()) ** 0.5
    _spares_what_is_small(where, model, norm)
    _refuses_infinity(where)
    told = float(torch.nn.utils.clip_grad_norm_(model.parameters(), norm / 2))
    torch.nn.utils.clip_grad_norm_(twin.parameters(), norm / 2)
    left = sum(float((parameter.grad.double() ** 2).sum()) for parameter in model.parameters()) ** 0.5
    # Rounding of sums of fewer than 1000 squares: below 2**-16. The smallest fault, a layer left out, moves it by a hundredth;
    # the 1e-6 that torch adds to the norm before it divides is below 2**-16 of a norm above 0.1.
    for seen, wanted in ((told, norm), (left, norm / 2)):
        if not abs(seen - wanted) <= 2.0**-14 * wanted:
            raise StageFailed(
                "clip-wrong", "%s: the norm is %.6g, clipped at %.6g; told %.6g, left %.6g" % (where, norm, norm / 2, told, left)
            )


def _refuses_infinity(where: str) -> None:
    held = torch.nn.Parameter(torch.ones(2))
    held.grad = torch.tensor([1.0, float("inf")])
    with contextlib.suppress(RuntimeError):
        torch.nn.utils.clip_grad_norm_([held], 1.0, error_if_nonfinite=True)
        seen = "%s: clip_grad_norm_(error_if_nonfinite=True) takes a gradient that is infinite"
        raise StageFailed("clip-wrong", seen % where)


def _spares_what_is_small(where: str, model: torch.nn.Module, norm: float) -> None:
    """Check that gradients whose norm is below the bound stay as they are, to the bit: the factor ends at 1 (torch/nn/utils/clip_grad.py)."""
    held = [parameter for parameter in model.parameters() if parameter.grad is not None]
    before = [parameter.grad.clone() for parameter in held]
    torch.nn.utils.clip_grad_norm_(held, 4 * norm)
    if not all(torch.equal(parameter.grad, kept) for parameter, kept in zip(held, before)):
        seen = "%s: clip_grad_norm_ changes gradients whose norm of %.6g is below the bound of %.6g"
        raise StageFailed("clip-wrong", seen % (where, norm, 4 * norm))
