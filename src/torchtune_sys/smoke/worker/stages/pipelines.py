"""A model whose layers lie on ranks in a row (pipeline parallelism), in whole numbers."""

from __future__ import annotations

from typing import Any, List

import torch
from torch import nn

from torchtune_sys.smoke.worker.agreement import Fault
from torchtune_sys.smoke.worker.context import RankContext, small_integers, torch_has_reached

_PIPED_WIDTH, _PIPED_ROWS, _PIPED_BATCHES = 4, 2, 4
_MOST_PIPED = 6
"""Of more layers the numbers would have more than 24 bits."""


def pipelines_are_right(here: RankContext) -> List[Fault]:
    """Return what is wrong after a step by each schedule: the outputs, the losses and this rank's gradient are to be those of the whole model."""
    if not 1 < here.world <= _MOST_PIPED or here.shared or not torch_has_reached(2, 13):  # before, it was never seen
        return []
    from torch.distributed import pipelining

    rows = _PIPED_ROWS * _PIPED_BATCHES
    weights = [small_integers((_PIPED_WIDTH, _PIPED_WIDTH), 450 + rank, -1, 2) for rank in range(here.world)]
    inputs, asked = small_integers((rows, _PIPED_WIDTH), 447, -2, 3), small_integers((rows, _PIPED_WIDTH), 448, -2, 3)
    whole = [weight.clone().requires_grad_() for weight in weights]
    answer = inputs
    for weight in whole:
        answer = answer @ weight.t()
    (answer * asked).sum().backward()
    wanted = [torch.zeros(0) if one.grad is None else one.grad / _PIPED_BATCHES for one in whole]
    given, made = (
        torch.zeros(_PIPED_ROWS, _PIPED_WIDTH, device=here.device, requires_grad=known) for known in (here.rank > 0, True)
    )
    faults: List[Fault] = []
    for name in ("ScheduleGPipe", "Schedule1F1B"):  # both, whatever is wrong: the next rank waits for this one
        layer = nn.Linear(_PIPED_WIDTH, _PIPED_WIDTH, bias=False)
        with torch.no_grad():
            layer.weight.copy_(weights[here.rank])
        stage = pipelining.PipelineStage(
            layer.to(here.device), here.rank, here.world, here.device, input_args=(given,), output_args=(made,)
        )
        schedule: Any = getattr(pipelining, name)(stage, _PIPED_BATCHES, loss_fn=lambda found, target: (found * target).sum())
        losses: List[torch.Tensor] = []
        last = here.rank == here.world - 1
        first = (inputs.to(here.device),) if here.rank == 0 else ()
        found = schedule.step(*first, **({"target": asked.to(here.device), "losses": losses} if last else {}))
        right = (answer * asked).detach().view(_PIPED_BATCHES, -1).sum(1)
        pairs = [("its gradient", layer.weight.grad, wanted[here.rank])]
        pairs = (
            [*pairs, ("the outputs", found, answer.detach()), ("the losses of its micro-batches", torch.stack(losses), right)]
            if last
            else pairs
        )
        for what, one, other in pairs:
            if one is None or not torch.equal(one.detach().cpu(), other):
                seen = "a pipeline (%s): %s on rank %d are not those of the whole model" % (name, what, here.rank)
                faults.append(("pipeline-wrong", seen))
    return faults
