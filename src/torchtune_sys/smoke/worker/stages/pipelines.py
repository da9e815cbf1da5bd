"""A model whose layers lie on ranks in a row (pipeline parallelism), in whole numbers."""

from __future__ import annotations

from typing import Any, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.agreement import Fault
from torchtune_sys.smoke.worker.context import RankContext, small_integers, torch_has_reached

_PIPED_WIDTH, _PIPED_ROWS, _PIPED_BATCHES = 4, 2, 4
_MOST_PIPED = 6
"""Of more layers the numbers would have more than 24 bits."""


def pipelines_are_right(here: RankContext) -> List[Fault]:
    """Return what is wrong after a step by each schedule: the outputs, the losses and the gradients of this rank's layers are to be those of the whole model."""
    if not 1 < here.world <= _MOST_PIPED or here.shared or not torch_has_reached(2, 13):  # before, it was never seen
        return []
    ways = [("ScheduleGPipe", 1), ("Schedule1F1B", 1)]
    ways += [("ScheduleInterleaved1F1B", 2)] if 2 * here.world <= _MOST_PIPED else []
    return [fault for name, each in ways for fault in _piped(here, name, each)]  # all, whatever is wrong: the next rank waits


def _whole(layers: int) -> Tuple[List[torch.Tensor], List[torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the weights of a model of so many layers, their gradients as a pipeline scales them, the inputs, the factors of the loss and the outputs."""
    rows = _PIPED_ROWS * _PIPED_BATCHES
    weights = [small_integers((_PIPED_WIDTH, _PIPED_WIDTH), 450 + number, -1, 2).requires_grad_() for number in range(layers)]
    inputs, asked = small_integers((rows, _PIPED_WIDTH), 447, -2, 3), small_integers((rows, _PIPED_WIDTH), 448, -2, 3)
    answer = inputs
    for weight in weights:
        answer = answer @ weight.t()
    (answer * asked).sum().backward()
    wanted = [torch.zeros(0) if one.grad is None else one.grad / _PIPED_BATCHES for one in weights]
    return [one.detach() for one in weights], wanted, inputs, asked, answer.detach()


def _piped(here: RankContext, name: str, each: int) -> List[Fault]:
    """One step by a schedule, with ``each`` layers on each rank, which it has in turns (rank 0 of 2: the first and the third)."""
    from torch.distributed import pipelining

    weights, wanted, inputs, asked, answer = _whole(each * here.world)
    places = range(here.rank, each * here.world, here.world)
    layers, stages = [], []
    for place in places:
        given, made = (
            torch.zeros(_PIPED_ROWS, _PIPED_WIDTH, device=here.device, requires_grad=known) for known in (place > 0, True)
        )
        layer = nn.Linear(_PIPED_WIDTH, _PIPED_WIDTH, bias=False)
        with torch.no_grad():
            layer.weight.copy_(weights[place])
        layers.append(layer.to(here.device))
        stages.append(
            pipelining.PipelineStage(layers[-1], place, each * here.world, here.device, input_args=(given,), output_args=(made,))
        )
    schedule: Any = getattr(pipelining, name)(
        stages if each > 1 else stages[0], _PIPED_BATCHES, loss_fn=lambda found, target: (found * target).sum()
    )
    losses: List[torch.Tensor] = []
    last = here.rank == here.world - 1
    first = (inputs.to(here.device),) if here.rank == 0 else ()
    found = schedule.step(*first, **({"target": asked.to(here.device), "losses": losses} if last else {}))
    right = (answer * asked).view(_PIPED_BATCHES, -1).sum(1)
    pairs = [("its gradient", layer.weight.grad, wanted[place]) for place, layer in zip(places, layers)]
    if last:
        pairs += [("the outputs", found, answer), ("the losses of its micro-batches", torch.stack(losses), right)]
    return [
        ("pipeline-wrong", "a pipeline (%s): %s on rank %d are not those of the whole model" % (name, what, here.rank))
        for what, one, other in pairs
        if one is None or not torch.equal(one.detach().cpu(), other)
    ]
