"""Mixed precision on several ranks: the scalers must decide alike, though each looks for itself."""

from __future__ import annotations

import json
from typing import Dict, List

import torch
from torch import nn

from torchtune_sys.smoke.worker.agreement import Fault, bits_of, judge, state_bits, tell_all, unlike
from torchtune_sys.smoke.worker.context import RankContext, Skipped, small_integers
from torchtune_sys.smoke.worker.grad_scaler import new_scaler
from torchtune_sys.smoke.worker.models import SmallTransformer, loss_of, seeded, sentences
from torchtune_sys.smoke.worker.stages.ddp import not_finite, wrapped
from torchtune_sys.smoke.worker.stages.precision import float16_autocast_is_there

_RANKS_STEPS = 16
_RANKS_RATE = 0.3
_RANKS_AWAY = 2.0**-7
"""As in one process: rounding was seen to move a loss by 7e-4, a step that is left out moves it by 0.015."""
_ROUNDS = 5
_BAD_ROUND = 2
_SCALE = 2.0**8


def ranks_train_in_low_precision(here: RankContext) -> None:
    """Check that the ranks' autocast loss matches a single float32 process, and that an inf on one rank makes all skip the step."""
    low = here.has_bfloat16()
    if low:
        _follows_one_process(here)
    try:
        float16_autocast_is_there(here)
    except Skipped:
        if low:
            return
        raise
    _scalers_agree(here)


def _follows_one_process(here: RankContext) -> None:
    seeded(4)
    net = SmallTransformer().to(here.device)
    model = wrapped(here, net)
    seeded(4)
    alone = SmallTransformer().to(here.device)
    optimizers = [torch.optim.SGD(one.parameters(), lr=_RANKS_RATE) for one in (model, alone)]
    own: List[float] = []
    plain: List[float] = []
    faults: List[Fault] = []
    for step in range(_RANKS_STEPS + 1):
        every = [sentences(16, 1000 * step + rank) for rank in range(here.world)]
        with torch.autocast(here.kind, dtype=torch.bfloat16):
            answers = model(every[here.rank][0].to(here.device))
            loss = nn.functional.cross_entropy(answers.flatten(0, -2), every[here.rank][1].to(here.device).flatten())
        if answers.dtype != torch.bfloat16:
            faults.append(("autocast-off", "a model that DDP holds gives %s under autocast to bfloat16" % str(answers.dtype)[6:]))
        faults += not_finite(here, "under autocast, step %d" % step, loss)
        whole = loss_of(alone, (torch.cat([each[0] for each in every]), torch.cat([each[1] for each in every])), here.device)
        own.append(loss.item())
        plain.append(whole.item())
        for one, optimizer in zip((loss, whole), optimizers):
            optimizer.zero_grad()
            one.backward()
            optimizer.step()
    del model, optimizers
    means = [sum(each) / here.world for each in zip(*(json.loads(said) for said in tell_all(here, json.dumps(own))))]
    away = max(abs(one - other) for one, other in zip(means, plain))
    # Before what follows from it: ranks of unlike weights are no one process.
    faults += unlike(here, "ddp-ranks-drift", "after %d steps in bfloat16" % _RANKS_STEPS, {"weights": state_bits(net)})
    if not away <= _RANKS_AWAY:
        seen = "the ranks' mean loss is %.4g away from that of one process in float32 (at most %.4g)" % (away, _RANKS_AWAY)
        faults.append(("amp-diverges", seen))
    if not means[-1] < means[0] - _RANKS_STEPS * _RANKS_AWAY:
        faults.append(("training-does-not-learn", "the ranks' mean loss goes from %.4g to %.4g" % (means[0], means[-1])))
    judge(here, faults)
    here.measure("away from float32", away, "")
    here.measure("loss", means[-1], "")


def _scalers_agree(here: RankContext) -> None:
    seeded(5)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(here.device)
    model = wrapped(here, net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = new_scaler(here, _SCALE, 1000)
    faults: List[Fault] = []
    states: Dict[str, str] = {}
    for turn in range(_ROUNDS):
        points = small_integers((32, 16), 100 * here.rank + turn).to(here.device)
        optimizer.zero_grad()
        with torch.autocast(here.kind, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        if turn == _BAD_ROUND and here.rank == here.world - 1:
            loss = loss + net[2].bias[3] * float("inf")  # one element's gradient, on one rank
        before = state_bits(net)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        faults += _decided_right(turn, before == state_bits(net), scaler.get_scale())
        states["round %d" % turn] = state_bits(net)
        states["scale of round %d" % turn] = repr(scaler.get_scale())
        states["optimizer of round %d" % turn] = bits_of(_remembered(optimizer))
    del model, optimizer
    # First: where the ranks decide differently, what each sees later is a consequence.
    faults = unlike(here, "ddp-ranks-drift", "in float16 with scalers", states) + faults
    judge(here, faults)


def _remembered(optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    return [torch.as_tensor(value) for held in optimizer.state.values() for value in held.values()]


def _decided_right(turn: int, skipped: bool, scale: float) -> List[Fault]:
    if turn == _BAD_ROUND and not skipped:
        return [("scaler-never-skips", "one rank met an inf, yet this rank took the step")]
    if turn != _BAD_ROUND and skipped:
        return [("scaler-always-skips", "round %d was left out, though all gradients are finite" % turn)]
    wanted = _SCALE / 2 if turn >= _BAD_ROUND else _SCALE
    if scale != wanted:
        return [("scaler-scale-wrong", "after round %d the scale is %g, where it must be %g" % (turn, scale, wanted))]
    return []
