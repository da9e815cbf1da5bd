"""DistributedDataParallel: the ranks together are one process with all their data."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchtune_sys.smoke.worker.agreement import Fault, bits_of, judge, state_bits, tell_all, unlike
from torchtune_sys.smoke.worker.context import RankContext, same_bits
from torchtune_sys.smoke.worker.integers import (
    BATCH,
    BRANCHES,
    STEP_SIZE,
    IntegerNet,
    furthest,
    gradient_of,
    gradients_alone,
    integer_batch,
    linear_loss,
)
from torchtune_sys.smoke.worker.models import Batch, SmallConvNet, SmallTransformer, bars, loss_of, sentences
from torchtune_sys.smoke.worker.stages.ddp_ways import (
    hooks_average,
    parameters_average,
    spread_optimizer_steps,
)

_WAYS: Tuple[Dict[str, Any], ...] = (
    {},
    {"find_unused_parameters": True},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
)
_ACCUMULATED: Tuple[Dict[str, Any], ...] = ({}, {"gradient_as_bucket_view": True})
_PASSES = 2
"""After the first pass DDP sorts its buckets anew, in the order in which the gradients came (reducer.cpp, rebuild_buckets)."""
_OWN_SEED = 11
_LEAVES_OUT = "what DDP leaves out"
_MICRO_BATCHES = 4
_LATER = 24
"""Steps: what is done in the first ones alone (a set-up of buckets, a warm-up) is over."""


def wrapped(here: RankContext, model: nn.Module, **ways: Any) -> DistributedDataParallel:
    """Buckets of 1 MiB: the gradients of a small model too travel in several."""
    return DistributedDataParallel(model, device_ids=[here.device] if here.kind == "cuda" else None, bucket_cap_mb=1, **ways)


def ranks_train_as_one(here: RankContext) -> None:
    """Check that ranks with different initial weights and data take the same step as one process with all the data."""
    faults: List[Fault] = []
    taken: Dict[str, str] = {}
    states: Dict[str, str] = {}
    for ways in _WAYS:
        if "static_graph" in ways and any(tell_all(here, "wrong" if faults else "")):
            break  # it asserts what the other ways showed to be wrong, in words of its own
        faults += _one_step(here, ways, taken, states)
    faults += _usual_step(here, _transformer, sentences, taken, states)
    faults += _usual_step(here, _conv_net, bars, taken, states)
    if not any(tell_all(here, "wrong" if faults else "")):  # else they say in other words what is known
        faults += _later_steps(here) + parameters_average(here) + hooks_average(here) + spread_optimizer_steps(here)
    # First, unless DDP has left out a part altogether: gradients of weights that differ are wrong by consequence.
    apart = unlike(here, "ddp-weights-not-broadcast", "after wrapping the weights differ between ranks", taken)
    faults = faults + apart if any(_LEAVES_OUT in seen for _, seen in faults) else apart + faults
    judge(here, faults, unlike(here, "ddp-ranks-drift", "after the step the weights differ between ranks", states))


def _one_step(here: RankContext, ways: Dict[str, Any], taken: Dict[str, str], states: Dict[str, str]) -> List[Fault]:
    way = ", ".join(ways) or "plain"
    first = IntegerNet(_OWN_SEED)
    net = IntegerNet(_OWN_SEED + here.rank).to(here.device)
    model = wrapped(here, net, **ways)
    taken[way] = state_bits(net)
    faults: List[Fault] = []
    others = [name for name, value in first.state_dict().items() if not torch.equal(value, net.state_dict()[name].cpu())]
    if others:
        seen = "%s: after wrapping, the weights are not rank 0's: %s" % (way, ", ".join(others))
        faults.append(("ddp-weights-not-broadcast", seen))
        net.load_state_dict(first.state_dict())
    branches = [BRANCHES[rank % 2] for rank in range(here.world)] if ways.get("find_unused_parameters") else []
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
    found: Dict[str, torch.Tensor] = {}
    wanted: Dict[str, torch.Tensor] = {}
    for turn in range(_PASSES):
        optimizer.zero_grad()
        inputs, targets = (part.to(here.device) for part in integer_batch(here.rank, turn))
        loss = linear_loss(model(inputs, branches[here.rank : here.rank + 1]), targets)
        faults += not_finite(here, "%s, pass %d" % (way, turn), loss)
        loss.backward()
        found = {name: gradient_of(value).clone() for name, value in net.named_parameters()}
        wanted = _gradients_of(range(here.world), range(turn, turn + 1), BATCH * here.world, tuple(branches))
        missed = _gradient_faults(here, "%s, pass %d" % (way, turn), first, found, wanted, branches, turn)
        faults = missed if _LEAVES_OUT in "".join(seen for _, seen in missed) else faults or missed
        if any(tell_all(here, "wrong" if faults else "")):  # DDP itself may refuse another pass then
            break
    optimizer.step()
    after = {name: value.detach().double() - STEP_SIZE * wanted[name] for name, value in first.named_parameters()}
    wrong = furthest(here, dict(net.named_parameters()), after)
    if wrong and not faults:
        faults.append(("ddp-step-wrong", "%s: weights after the step, %s" % (way, wrong)))
    states[way] = state_bits(net)
    states[way + " gradients"] = bits_of(found.values())
    del model, optimizer
    return faults


@functools.lru_cache(maxsize=None)  # Python 3.8 has no functools.cache
def _gradients_of(ranks: range, turns: range, samples: int, branches: Tuple[str, ...] = ()) -> Dict[str, torch.Tensor]:
    """Return the right answer for these batches, which most ways of DDP have in common."""
    batches = [integer_batch(rank, turn) for rank in ranks for turn in turns]
    return gradients_alone(IntegerNet(_OWN_SEED), batches, samples, branches)


def _gradient_faults(
    here: RankContext,
    way: str,
    first: IntegerNet,
    found: Dict[str, torch.Tensor],
    wanted: Dict[str, torch.Tensor],
    branches: Sequence[str],
    turn: int,
) -> List[Fault]:
    wrong = furthest(here, found, wanted)
    if not wrong:
        return []
    if not all(bool(torch.isfinite(value).all()) for value in found.values()):
        return _own_gradient_not_finite(here, way, turn, branches) or [("ddp-gradients-wrong", "%s: %s" % (way, wrong))]
    own = gradients_alone(first, [integer_batch(here.rank, turn)], BATCH, branches[here.rank : here.rank + 1])
    kept = [name for name in own if bool((own[name] != wanted[name]).any()) and not same_bits(found[name], own[name])]
    if kept:
        what = "%s, %s," % (_LEAVES_OUT, ", ".join(kept)) if len(kept) < len(own) else "all of it"
        seen = "%s: %s holds the gradient of this rank's data alone; %s" % (way, what, wrong)
        return [("ddp-gradients-not-synchronised", seen)]
    narrow = [name for name in ("float16", "bfloat16") if all(_holds(getattr(torch, name), value) for value in found.values())]
    how = ": each is one that %s holds, as if they travelled in it (a communication hook?)" % narrow[0] if narrow else ""
    return [("ddp-gradients-wrong", "%s: gradients are not those of all data%s; %s" % (way, how, wrong))]


def _holds(dtype: torch.dtype, values: torch.Tensor) -> bool:
    return not same_bits(values.to(dtype), values)


def not_finite(here: RankContext, way: str, loss: torch.Tensor) -> List[Fault]:
    """Return what this rank's own loss says: after the exchange all ranks' gradients are NaN, whoever's it was."""
    if bool(torch.isfinite(loss.detach())):
        return []
    return [("loss-not-finite", "%s: the loss of rank %d, from its own data, is %r" % (way, here.rank, loss.item()))]


def _own_gradient_not_finite(here: RankContext, way: str, turn: int, branches: Sequence[str]) -> List[Fault]:
    """Take the same step once more by this rank alone, without DDP."""
    alone = IntegerNet(_OWN_SEED).to(here.device)
    inputs, targets = (part.to(here.device) for part in integer_batch(here.rank, turn))
    linear_loss(alone(inputs, branches[here.rank : here.rank + 1]), targets).backward()
    bad = [name for name, value in alone.named_parameters() if not bool(torch.isfinite(gradient_of(value)).all())]
    seen = "%s: the gradient of %s is not finite on rank %d alone, from its own data" % (way, ", ".join(bad), here.rank)
    return [("gradient-not-finite", seen)] if bad else []


def _later_steps(here: RankContext) -> List[Fault]:
    """Return where ranks that began as one, each with its own data, are no longer one many steps later. The same on all ranks."""
    net = IntegerNet(_OWN_SEED).to(here.device)
    model = wrapped(here, net)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-20)
    for turn in range(_LATER):
        optimizer.zero_grad()
        inputs, targets = (part.to(here.device) for part in integer_batch(here.rank, turn))
        linear_loss(model(inputs), targets).backward()
        optimizer.step()
        if turn == _LATER // 2:  # an evaluation
            with torch.no_grad():
                model.eval()(inputs)
            model.train()
    last = {"gradients": bits_of(gradient_of(value) for value in net.parameters())}
    apart = unlike(here, "ddp-gradients-not-synchronised", "after the last of %d steps" % _LATER, last)
    return apart or unlike(here, "ddp-ranks-drift", "after %d steps" % _LATER, {"weights": state_bits(net)})


def _transformer(rank: int) -> nn.Module:
    torch.manual_seed(_OWN_SEED + rank)
    return SmallTransformer()


def _conv_net(rank: int) -> nn.Module:
    torch.manual_seed(_OWN_SEED + rank)
    return SmallConvNet().eval()  # normalised by the same figures on all ranks


def _usual_step(
    here: RankContext,
    make: Callable[[int], nn.Module],
    data: Callable[[int, int], Batch],
    taken: Dict[str, str],
    states: Dict[str, str],
) -> List[Fault]:
    """As in one process, but for rounding. In float32 sums of at most 2048 products in another order are off by 2**-24 * 2048 = 1.2e-4 of
    their size at most; where a GPU convolves in TF32 (torch's default), each factor by 2**-11, and another batch takes another algorithm.
    A share of one rank of eight that is lost changes a gradient by a tenth of its size: the bound of a fiftieth lies between."""
    model, alone = make(here.rank).to(here.device), make(0).to(here.device)
    name = type(model).__name__
    faults: List[Fault] = []
    parallel = wrapped(here, model)
    taken[name] = state_bits(model)
    drawn = tell_all(here, state_bits(alone))  # all are made by one seed
    if len({*drawn}) > 1:  # what is compared with such a model says no more, on any rank
        seen = (
            "%s: made by the same seed, it has other weights on rank %d than on rank 0: one of them draws or computes otherwise"
        )
        return [("ranks-compute-differently", seen % (name, here.rank))] if drawn[here.rank] != drawn[0] else []
    if taken[name] != drawn[0]:  # the others are yet to be met in the exchange
        faults.append(("ddp-weights-not-broadcast", "%s: after wrapping, the weights are not rank 0's" % name))
    loss_of(parallel, data(16, 500 + here.rank), here.device).backward()
    every = [data(16, 500 + rank) for rank in range(here.world)]
    loss_of(alone, (torch.cat([each[0] for each in every]), torch.cat([each[1] for each in every])), here.device).backward()
    states[name + " gradients"] = bits_of(gradient_of(value) for value in model.parameters())
    for (key, found), wanted in zip(model.named_parameters(), alone.parameters()):
        size, off = float(gradient_of(wanted).norm()), float((gradient_of(found) - gradient_of(wanted)).norm())
        if not off <= 0.02 * size + 1e-6:
            seen = "%s: the gradient of %s, of size %.3g, is off by %.3g" % (name, key, size, off)
            return [*faults, ("ddp-gradients-wrong", seen)]
    return faults


def accumulation_is_the_large_batch(here: RankContext) -> None:
    """Check that no_sync keeps gradients local, and that the last micro-batch makes them those of all batches together."""
    faults: List[Fault] = []
    together: Dict[str, str] = {}
    for ways in _ACCUMULATED:
        faults += _accumulates(here, ways, together)
        if any(tell_all(here, "wrong" if faults else "")):
            break
    judge(here, faults, unlike(here, "ddp-gradients-not-synchronised", "after the last micro-batch", together))


def _accumulates(here: RankContext, ways: Dict[str, Any], together: Dict[str, str]) -> List[Fault]:
    how = "".join(", %s" % way for way in ways)
    first = IntegerNet(_OWN_SEED)
    net = IntegerNet(_OWN_SEED).to(here.device)
    model = wrapped(here, net, **ways)
    own = [integer_batch(here.rank, turn) for turn in range(_MICRO_BATCHES)]
    faults: List[Fault] = []
    samples = BATCH * _MICRO_BATCHES
    with model.no_sync():
        for turn, batch in enumerate(own[:-1], 1):
            _micro_step(here, model, batch)
            wrong = furthest(here, _gradients(net), _gradients_of(range(here.rank, here.rank + 1), range(turn), samples))
            if wrong:
                alone = not furthest(here, _gradients(net), gradients_alone(first, [batch], samples))
                seen = "under no_sync, %d micro-batches%s: %s%s"
                kept = "the last one's gradient is all that is kept; " if alone and turn > 1 else ""
                faults.append(("accumulation-wrong" if kept else "no-sync-synchronises", seen % (turn, how, kept, wrong)))
    apart = bits_of(_gradients(net).values())
    _micro_step(here, model, own[-1])
    together["gradients" + how] = bits_of(_gradients(net).values())
    wrong = furthest(here, _gradients(net), _gradients_of(range(here.world), range(_MICRO_BATCHES), samples * here.world))
    faults += [("accumulation-wrong", "%d micro-batches on each rank%s: %s" % (_MICRO_BATCHES, how, wrong))] if wrong else []
    del model
    if here.world > 1 and not unlike(here, "", "", {"gradients": apart}):
        faults.append(("no-sync-synchronises", "under no_sync all ranks hold the same gradients"))
    return faults


def _micro_step(here: RankContext, model: nn.Module, batch: Batch) -> None:
    inputs, targets = (part.to(here.device) for part in batch)
    (linear_loss(model(inputs), targets) / _MICRO_BATCHES).backward()


def _gradients(net: nn.Module) -> Dict[str, torch.Tensor]:
    return {name: gradient_of(value) for name, value in net.named_parameters()}
