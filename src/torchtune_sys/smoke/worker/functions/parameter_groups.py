"""An optimizer of several groups of parameters, of all shapes, is as many optimizers of one weight."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.inputs import distinct

_OFF_ALONE, _OFF_ALONE_LOW = 2.0**-14, 2.0**-4
"""Of float32 beside float64, and of bfloat16 weights of up to two, which some steps round. What another option does moves a weight by a tenth and more."""
_OWN: Tuple[Tuple[str, Dict[str, Any], Dict[str, Any]], ...] = (
    ("SGD", {"momentum": 0.5, "weight_decay": 0.0}, {"momentum": 0.75, "dampening": 0.25, "weight_decay": 0.5}),
    ("Adam", {"betas": (0.5, 0.75), "eps": 0.5}, {"betas": (0.75, 0.5), "eps": 0.25, "weight_decay": 0.5, "amsgrad": True}),
    ("AdamW", {"betas": (0.5, 0.75), "weight_decay": 0.0}, {"betas": (0.75, 0.5), "eps": 0.25, "weight_decay": 0.5}),
    ("RMSprop", {"alpha": 0.5, "eps": 0.5}, {"alpha": 0.75, "momentum": 0.5, "centered": True, "weight_decay": 0.5}),
    ("Adagrad", {"lr_decay": 0.5, "eps": 0.5}, {"weight_decay": 0.5, "eps": 0.25}),
    ("Adadelta", {"rho": 0.5, "eps": 0.5}, {"rho": 0.75, "weight_decay": 0.5, "eps": 0.25}),
    ("Adamax", {"betas": (0.5, 0.75)}, {"betas": (0.75, 0.5), "weight_decay": 0.5}),
    ("NAdam", {"betas": (0.5, 0.75), "momentum_decay": 0.5}, {"betas": (0.75, 0.5), "weight_decay": 0.5}),
    ("RAdam", {"betas": (0.5, 0.75)}, {"betas": (0.75, 0.5), "weight_decay": 0.5}),
    ("Rprop", {"etas": (0.25, 1.5)}, {"etas": (0.5, 1.25), "step_sizes": (1e-6, 0.07)}),
)
"""Optimizers that step number by number, with the options of two groups of parameters."""
_SHAPES_OF_OWN = ((5, 7), (3,), (), (0,), (2, 1, 2, 3))
_STEPS_OF_OWN, _FIRST_OF_OWN = 3, 3


def groups_have_their_own(here: RankContext) -> None:
    """Check that weights of all shapes, in groups with options of their own, one of them in bfloat16, step as each does alone, in float64, and that one without a gradient stays:
    rates and decays differ between layers, scales have no dimension, and experts get no words."""
    for kind, *options in _OWN[: _FIRST_OF_OWN if here.level == QUICK else None]:
        options = [{"lr": rate, **one} for rate, one in zip((0.125, 0.25), options)]
        alone = [(shape, one) for one in options for shape in _SHAPES_OF_OWN]
        gradients = [
            [distinct(*shape, seed=43 + 2 * step + number) for number, (shape, _) in enumerate(alone)]
            for step in range(_STEPS_OF_OWN)
        ]
        wanted = [_steps_alone(kind, one, [each[number] for each in gradients]) for number, (_, one) in enumerate(alone)]
        for way in ({}, {"foreach": True}, {"fused": True}):
            held = [
                torch.nn.Parameter(
                    distinct(*shape, seed=37).to(
                        here.device, torch.bfloat16 if number == 1 and here.has_bfloat16() else torch.float32
                    )
                )
                for number, (shape, _) in enumerate(alone)
            ]
            idle = torch.nn.Parameter(torch.ones(2, device=here.device))
            count = len(_SHAPES_OF_OWN)
            try:
                optimizer = getattr(torch.optim, kind)(
                    [{"params": held[:count], **options[0]}, {"params": [idle, *held[count:]], **options[1]}], **way
                )
                for each in gradients:
                    for one, gradient in zip(held, each):
                        one.grad = gradient.to(one)
                    optimizer.step()
            except (RuntimeError, TypeError):
                if way:  # a release, or a device, that does not have it so
                    continue
                raise
            for number, (one, right) in enumerate(zip([*held, idle], [*wanted, torch.ones(2, dtype=torch.float64)])):
                off = float((one.detach().cpu().double() - right).abs().max()) if one.numel() else 0.0
                if not off <= (_OFF_ALONE if one.dtype == torch.float32 else _OFF_ALONE_LOW):
                    place = "parameter group %d" % (number >= count)
                    words = (
                        _STEPS_OF_OWN,
                        kind,
                        "".join(", " + name for name in way),
                        str(one.dtype)[6:],
                        tuple(one.shape),
                        place,
                        "" if one is not idle else ", which has no gradient,",
                        off,
                    )
                    raise StageFailed(
                        "optimizer-wrong",
                        "after %d steps of %s%s a weight of %s of shape %s in %s%s is off by %.3g from one that steps alone"
                        % words,
                    )


def _steps_alone(kind: str, options: Dict[str, Any], gradients: List[torch.Tensor]) -> torch.Tensor:
    """Return what becomes of one weight in float64, in one row: where some weights have no dimension, others none beside."""
    weight = torch.nn.Parameter(distinct(*gradients[0].shape, seed=37).reshape(1, -1))
    optimizer = getattr(torch.optim, kind)([weight], foreach=False, **options)
    for gradient in gradients if weight.numel() else ():
        weight.grad = gradient.reshape(1, -1)
        optimizer.step()
    return weight.detach().view(gradients[0].shape)
