"""What replaces parts of DistributedDataParallel's step: hooks that send gradients in another way, and an optimizer that is spread over ranks."""

from __future__ import annotations

import functools
from typing import Any, Iterator, List, Sequence, Tuple

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
_FROZEN_WIDTH = 4
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


class _SeveralPrecisions(nn.Module):
    """A vector of parameters in each of them, as where some layers are kept in another than the rest; DDP sends each in buckets of its own."""

    def __init__(self, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.held = nn.ParameterList([nn.Parameter(torch.zeros(_OF_EACH_PRECISION, dtype=dtype)) for dtype in dtypes])

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        shares = [(one * given.to(one.dtype)).sum().float() for one in self.held]
        return torch.stack(shares).sum()


def precisions_average(here: RankContext) -> List[Fault]:
    """Return what is wrong with a gradient of a model whose parameters have several precisions: each is to be the mean over ranks."""
    wishes = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    dtypes = [dtype for dtype in wishes if _can_sum(here, dtype)]
    model = _SeveralPrecisions(dtypes).to(here.device)
    parallel = DistributedDataParallel(model, device_ids=[here.device] if here.kind == "cuda" else None)
    asked = [small_integers((_OF_EACH_PRECISION,), 380 + rank, -2, 3) for rank in range(here.world)]
    parallel(asked[here.rank].to(here.device)).backward()
    wanted = torch.stack(asked).double().mean(0)
    faults: List[Fault] = []
    for dtype, held in zip(dtypes, model.held):
        found = torch.zeros_like(wanted) if held.grad is None else held.grad.detach().cpu().double()
        off = (found - wanted).abs()
        if not float(off.max()) <= _AWAY_HOOKED * 2:
            own = bool((found == asked[here.rank].double()).all())
            cause = "ddp-gradients-not-synchronised" if own else "ddp-gradients-wrong"
            whose = "this rank's alone" if own else "not the mean over ranks"
            seen = "the gradient of parameters of %s in a model of %s is %s: %d of %d elements are wrong"
            words = (
                str(dtype)[6:],
                ", ".join(str(one)[6:] for one in dtypes),
                whose,
                int((off > _AWAY_HOOKED * 2).sum()),
                off.numel(),
            )
            faults.append((cause, seen % words))
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


def frozen_parts_are_no_matter(here: RankContext) -> List[Fault]:
    """Return what is wrong with the gradients of two layers above one that is frozen, as adapters are: all in whole numbers, and inputs of ones."""
    model = nn.Sequential(*(nn.Linear(_FROZEN_WIDTH, _FROZEN_WIDTH, bias=False) for _ in range(3))).to(here.device)
    for layer in model:
        nn.init.ones_(layer.weight)
    model[0].weight.requires_grad_(False)
    parallel = DistributedDataParallel(model, device_ids=[here.device] if here.kind == "cuda" else None)
    (parallel(torch.ones(1, _FROZEN_WIDTH, device=here.device)) * (here.rank + 1)).sum().backward()
    wanted = (here.world + 1) / 2 * _FROZEN_WIDTH**2
    for number in (1, 2):
        gradient = model[number].weight.grad
        found = float("nan") if gradient is None else float(gradient[0, 0])
        if not abs(found - wanted) <= 1e-3 * wanted:
            own = found == (here.rank + 1) * _FROZEN_WIDTH**2
            cause = "ddp-gradients-not-synchronised" if own else "ddp-gradients-wrong"
            seen = "in a model of which a part is frozen the gradient of layer %d is %g, not %g%s"
            return [(cause, seen % (number, found, wanted, ", which is this rank's alone" if own else ""))]
    return []


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
