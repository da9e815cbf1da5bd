"""What replaces parts of DistributedDataParallel's step: hooks that send gradients in another way, and an optimizer that is spread over ranks."""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchtune_sys.smoke.worker.agreement import Fault
from torchtune_sys.smoke.worker.context import QUICK, RankContext, small_integers
from torchtune_sys.smoke.worker.exchange_names import backend_has

_HOOKED_INPUTS, _HOOKED_OUTPUTS = 64, 32
_AWAY_HOOKED = 2.0**-5
"""What hooks send has 8 bits at least, and PowerSGD makes one of sums of 64 products; the largest gradient is 2. A hook that does not divide, or leaves out a rank of
eight, is off by an eighth of 2 and more."""
_FIRST_OF_POWERSGD = 2
"""Steps before it begins: torch allows no less where it keeps what it left out."""
_OF_EACH_PRECISION = 41
_SPREAD_SHAPES = ((5, 7), (31,), (4, 4), (3, 2))
_MORE_THAN_A_BUCKET, _ASKED_IN_TURN = 300007, 1009
_AWAY_FULL = 2.0**-18
"""Of means of small integers in float32."""
_SPREAD_STEP = 0.25
_Hook = Tuple[str, Any, Any, int]


def hooks_average(here: RankContext) -> List[Fault]:
    """Return what is wrong with a gradient that hooks send: a column times a row, for PowerSGD gives that alone; all ranks have the row."""
    inputs = small_integers((1, _HOOKED_INPUTS), 341, -1, 2)
    asked = [small_integers((_HOOKED_OUTPUTS,), 350 + rank, -2, 3) for rank in range(here.world)]
    wanted = (torch.stack(asked).double().mean(0)[:, None] * inputs.double()).float()
    faults: List[Fault] = []
    for name, hook, state, passes in _hooks(here):
        model = nn.Linear(_HOOKED_INPUTS, _HOOKED_OUTPUTS, bias=False).to(here.device)
        parallel = DistributedDataParallel(model, device_ids=[here.device] if here.kind == "cuda" else None)
        try:
            parallel.register_comm_hook(state, hook)
        except (TypeError, ValueError):  # bfloat16 by a torch without NCCL
            continue
        for _ in range(passes):
            parallel.zero_grad()
            (parallel(inputs.to(here.device)) * asked[here.rank].to(here.device)).sum().backward()
        found = torch.zeros_like(wanted) if model.weight.grad is None else model.weight.grad.detach().cpu()
        off = (found - wanted).abs()
        if not float(off.max()) <= _AWAY_HOOKED * 2:
            place = int(off.argmax())
            figures = (
                name,
                int((off > _AWAY_HOOKED * 2).sum()),
                off.numel(),
                float(found.flatten()[place]),
                float(wanted.flatten()[place]),
            )
            seen = "DDP with the hook %s: %d of %d elements of a gradient are not the mean over ranks, one is %.6g, not %.6g"
            faults.append(("ddp-gradients-wrong", seen % figures))
        del parallel
    return faults


class _Held(nn.Module):
    """Parameters of any kind; the loss is the sum of what each is asked for."""

    def __init__(self, held: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.held = nn.ParameterList(held)

    def forward(self, asked: Sequence[torch.Tensor]) -> torch.Tensor:
        shares = [(one * by.to(one.device, one.dtype)).sum().float() for one, by in zip(self.held, asked)]
        return torch.stack(shares).sum()


def _parameters_of_kinds(here: RankContext) -> List[nn.Parameter]:
    """Return a parameter in each precision, which DDP sends in buckets of their own, and one that is a number alone, one whose memory is transposed, one as convolutions have it with
    channels_last, one that is frozen and one that fills more than a bucket."""
    dtypes = [one for one in (torch.float32, torch.bfloat16, torch.float64, torch.float16) if _can_sum(here, one)]
    held = [torch.zeros(_OF_EACH_PRECISION, dtype=dtype) for dtype in dtypes]
    held += [torch.zeros(()), torch.zeros(5, 7).t(), torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)]
    held += [torch.zeros(3), torch.zeros(_MORE_THAN_A_BUCKET)]
    return [nn.Parameter(one.to(here.device), requires_grad=one.shape != (3,)) for one in held]


def parameters_average(here: RankContext) -> List[Fault]:
    """Return what is wrong with the gradients of parameters of all kinds, of one model, of two whose passes overlap, and of one whose ranks are some of all: each is to be the mean over
    its ranks."""
    halves = [dist.new_group([*range(odd, here.world, 2)]) for odd in (0, 1)[: here.world]]  # all ranks take part in making them
    own = here.rank % 2
    everybody, mine = [*range(here.world)], [*range(own, here.world, 2)]
    rows: Tuple[Tuple[str, List[int], int, Dict[str, Any]], ...] = (
        ("", everybody, 1, {}),
        (" of one of two models that pass forward before either passes back", everybody, 2, {"gradient_as_bucket_view": True}),
        (" within a group of %d ranks (process_group=)" % len(mine), mine, 1, {"process_group": halves[own]}),
    )
    faults: List[Fault] = []
    for how, ranks, count, ways in rows:
        models = [_Held(_parameters_of_kinds(here)) for _ in range(count)]
        devices = [here.device] if here.kind == "cuda" else None
        parallel = [DistributedDataParallel(one, device_ids=devices, bucket_cap_mb=1, **ways) for one in models]
        losses = [one(_asked_of(model, here.rank, number)) for number, (model, one) in enumerate(zip(models, parallel))]
        torch.stack(losses).sum().backward()
        for number, model in enumerate(models):
            faults += _are_means(here, how, model, ranks, number)
        del parallel
    return faults


def _asked_of(model: _Held, rank: int, number: int) -> List[torch.Tensor]:
    rows = small_integers((_ASKED_IN_TURN,), 380 + 97 * rank + number, -2, 3)
    return [
        rows.roll(at).repeat(-(-one.numel() // _ASKED_IN_TURN))[: one.numel()].view(one.shape)
        for at, one in enumerate(model.held)
    ]


def _are_means(here: RankContext, how: str, model: _Held, ranks: List[int], number: int) -> List[Fault]:
    sums = [torch.zeros(one.shape, dtype=torch.float64) for one in model.held]
    for rank in ranks:
        for each, asked in zip(sums, _asked_of(model, rank, number)):
            each += asked
    faults: List[Fault] = []
    for one, whole, own in zip(model.held, sums, _asked_of(model, here.rank, number)):
        if not one.requires_grad:
            continue
        wanted = whole / len(ranks)
        found = torch.zeros_like(wanted) if one.grad is None else one.grad.detach().cpu().double()
        off = (found - wanted).abs()
        away = _AWAY_HOOKED * 2 if one.dtype in (torch.bfloat16, torch.float16) else _AWAY_FULL
        if not float(off.max()) <= away:
            is_own = len(ranks) > 1 and bool((found == own.double()).all())
            whose = "this rank's alone" if is_own else "not the mean over ranks"
            words = (str(one.dtype)[6:], tuple(one.shape), how, whose, int((off > away).sum()), off.numel())
            seen = "the gradient of a parameter of %s, of shape %s,%s is %s: %d of %d elements are wrong" % words
            faults.append(("ddp-gradients-not-synchronised" if is_own else "ddp-gradients-wrong", seen))
    return faults


def _can_sum(here: RankContext, dtype: torch.dtype) -> bool:
    tried = torch.ones(1, device=here.device, dtype=dtype)
    return (dtype != torch.bfloat16 or here.has_bfloat16()) and backend_has(
        here.backend, functools.partial(dist.all_reduce, tried)
    )


def _hooks(here: RankContext) -> Iterator[_Hook]:
    try:  # PowerSGD draws by NumPy, and is imported with the others
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    except ImportError:
        return
    for name in ("fp16_compress_hook", "allreduce_hook", "bf16_compress_hook")[: 1 if here.level == QUICK else 3]:
        dtype = {"bf": torch.bfloat16, "fp": torch.float16}.get(name[:2], torch.float32)
        if _can_sum(here, dtype):
            yield name, getattr(default_hooks, name), None, 1
    if here.level == QUICK:
        return
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powers

    state = powers.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=_FIRST_OF_POWERSGD)
    yield "powerSGD_hook", powers.powerSGD_hook, state, _FIRST_OF_POWERSGD + 2


def spread_optimizer_steps(here: RankContext) -> List[Fault]:
    """Return what is wrong after two steps of an optimizer of which each rank has a part (ZeRO): all weights are to be those of the whole optimizer, to the last bit."""
    if here.level == QUICK:
        return []
    from torch.distributed.optim import ZeroRedundancyOptimizer

    weights = [nn.Parameter(small_integers(shape, 360 + number).to(here.device)) for number, shape in enumerate(_SPREAD_SHAPES)]
    alone = [value.detach().cpu().double() for value in weights]
    speeds = [torch.zeros_like(value) for value in alone]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=_SPREAD_STEP, momentum=0.5)
    for turn in range(2):
        for number, value in enumerate(weights):
            gradient = small_integers(tuple(value.shape), 370 + 10 * turn + number)
            value.grad = gradient.to(here.device)
            speeds[number] = speeds[number] * 0.5 + gradient.double()
            alone[number] = alone[number] - _SPREAD_STEP * speeds[number]
        optimizer.step()
    for number, (value, wanted) in enumerate(zip(weights, alone)):
        off = int((value.detach().cpu().double() != wanted).sum())
        if off:
            owner = getattr(optimizer, "_param_to_rank", {}).get(value, "?")
            seen = (
                "ZeroRedundancyOptimizer: after two steps %d of %d elements of parameter %d, which rank %s steps with, are wrong"
            )
            return [("zero-step-wrong", seen % (off, wanted.numel(), number, owner))]
    return []
