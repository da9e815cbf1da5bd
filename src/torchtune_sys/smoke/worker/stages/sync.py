"""What ranks keep alike beside parameters, and ranks that have less data than others."""

from __future__ import annotations

from typing import Dict, List

import torch
import torch.distributed as dist
from torch import nn

from torchtune_sys.smoke.worker.agreement import Fault, judge, state_bits, unlike
from torchtune_sys.smoke.worker.context import RankContext, Skipped, small_integers
from torchtune_sys.smoke.worker.integers import STEP_SIZE, IntegerNet, gradients_alone, integer_batch, linear_loss
from torchtune_sys.smoke.worker.stages.ddp import wrapped

_ROWS, _COLUMNS = 8, 6
_MOMENTUM = 0.5
_BUFFER_KINDS = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
_JOIN_WIDTH = 16
_FIGURES_AWAY = 1e-4
"""Means and variances of eight small integers, which float32 gets right to 1e-6. Other data moves each by a sixteenth or more."""


class _Normalised(nn.Module):
    """A normalisation with running figures, within other modules, and buffers of one's own."""

    def __init__(self, kinds: List[str]) -> None:
        super().__init__()
        self.kinds = kinds
        self.blocks = nn.Sequential(nn.Sequential(nn.BatchNorm1d(_COLUMNS, momentum=_MOMENTUM)))
        self.last = nn.Linear(_COLUMNS, 2)
        for name in kinds:
            self.register_buffer("mark_" + name, torch.zeros(3, dtype=getattr(torch, name)))
        self.marks_in_use: Dict[str, List[float]] = {}

    @property
    def norm(self) -> nn.BatchNorm1d:
        return next(one for one in self.blocks.modules() if isinstance(one, nn.BatchNorm1d))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.marks_in_use = {name: getattr(self, "mark_" + name).tolist() for name in self.kinds}
        return self.last(self.blocks(inputs))


def _travels(here: RankContext, name: str) -> bool:
    """Whether this backend takes numbers of a kind: gloo of torch 2.0 says of bfloat16 at once that it does not."""
    try:
        dist.broadcast(torch.ones(1, dtype=getattr(torch, name), device=here.device), 0)
    except RuntimeError as error:
        if "nvalid scalar type" not in str(error) and "nsupported" not in str(error):
            raise
        return False
    return True


def _rows_of(rank: int, turn: int) -> torch.Tensor:
    return small_integers((_ROWS, _COLUMNS), 40000 + 100 * rank + turn)


def buffers_follow_rank_0(here: RankContext) -> None:
    """Check that all ranks use rank 0's buffers in each forward pass."""
    net = _Normalised([name for name in _BUFFER_KINDS if _travels(here, name)]).to(here.device)
    model = wrapped(here, net)
    expected = nn.BatchNorm1d(_COLUMNS, momentum=_MOMENTUM).double()
    _spoil(net, here.rank)
    _spoil_norm(expected, 0)
    faults: List[Fault] = []
    for turn in range(3):
        model(_rows_of(here.rank, turn).to(here.device)).sum().backward()
        for name, marks in net.marks_in_use.items():
            if marks != [1, 1, 1]:
                seen = "in pass %d a registered buffer (%s) of rank 0, set to 1, is %g" % (turn, name, marks[0])
                faults.append(("buffers-not-broadcast", seen))
        if int(net.norm.num_batches_tracked) != turn + 1:
            seen = "after pass %d the count of batches (num_batches_tracked) is %d" % (turn, int(net.norm.num_batches_tracked))
            faults.append(("buffers-not-broadcast", seen))
        before = {name: value.clone() for name, value in expected.state_dict().items()}
        expected(_rows_of(here.rank, turn).double())
        for name in ("running_mean", "running_var"):
            off = float((getattr(net.norm, name).cpu().double() - getattr(expected, name)).abs().max())
            if not off <= _FIGURES_AWAY:
                faults.append(("buffers-not-broadcast", "after pass %d the %s is off by %.3g" % (turn, name, off)))
        expected.load_state_dict(before)
        expected(_rows_of(0, turn).double())  # what rank 0 made of it is where all begin the next pass
    del model
    judge(here, faults)


def _spoil(net: _Normalised, rank: int) -> None:
    _spoil_norm(net.norm, rank)
    with torch.no_grad():
        for name in net.kinds:
            getattr(net, "mark_" + name).fill_(rank == 0)
        net.norm.num_batches_tracked.fill_(100 * rank)


def _spoil_norm(norm: nn.BatchNorm1d, rank: int) -> None:
    with torch.no_grad():
        norm.running_mean.fill_(8.0 * rank + 1.0)
        norm.running_var.fill_(8.0 * rank + 2.0)


def normalisation_spans_ranks(here: RankContext) -> None:
    """Check that SyncBatchNorm gives the same results, forward and backward, as one process with all the data."""
    if here.kind == "cpu":
        raise Skipped("SyncBatchNorm is for GPUs only")
    torch.manual_seed(3)
    plain = nn.Sequential(nn.BatchNorm1d(_COLUMNS, momentum=_MOMENTUM), nn.Linear(_COLUMNS, 2)).double()
    torch.manual_seed(3)
    net = nn.Sequential(nn.BatchNorm1d(_COLUMNS, momentum=_MOMENTUM), nn.Linear(_COLUMNS, 2))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net).to(here.device)
    model = wrapped(here, net)
    inputs = _rows_of(here.rank, 9).to(here.device).requires_grad_()
    found = model(inputs)
    (found**2).sum().backward()
    every = torch.cat([_rows_of(rank, 9) for rank in range(here.world)]).double().requires_grad_()
    wanted = plain(every)
    (wanted**2).sum().backward()
    own = slice(here.rank * _ROWS, (here.rank + 1) * _ROWS)
    pairs: Dict[str, List[torch.Tensor]] = {
        "output": [found, wanted[own]],
        "input's gradient": [inputs.grad, every.grad[own]],
        "running mean": [net[0].running_mean, plain[0].running_mean],
        "running variance": [net[0].running_var, plain[0].running_var],
        "weight's gradient": [net[0].weight.grad * here.world, plain[0].weight.grad],
    }
    faults: List[Fault] = []
    for name, (one, other) in pairs.items():
        off = float((one.detach().cpu().double() - other.detach()).abs().max())
        # Products in TF32 (NVIDIA's images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE) are off by up to a thousandth each.
        if not off <= 100 * _FIGURES_AWAY * max(1.0, float(other.detach().abs().max())):
            faults.append(("sync-batchnorm-wrong", "the %s is off by %.3g from that of one process" % (name, off)))
    del model, found
    judge(here, faults)


def uneven_ranks_join(here: RankContext) -> None:
    """Check that ranks whose data ends early keep serving the others, and that all end with the right weights."""
    first = IntegerNet(21, _JOIN_WIDTH, torch.float64)
    net = IntegerNet(21, _JOIN_WIDTH, torch.float64).to(here.device)
    model = wrapped(here, net)
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
    with model.join():
        for turn in range(_batches_of(here, here.rank)):
            inputs, targets = (part.to(here.device).double() for part in integer_batch(here.rank, turn, _JOIN_WIDTH))
            optimizer.zero_grad()
            linear_loss(model(inputs), targets).backward()
            optimizer.step()
    steps = max(_batches_of(here, rank) for rank in range(here.world))
    for turn in range(steps):
        _step_of_the_present(here, first, turn)
    faults: List[Fault] = []
    for (name, found), wanted in zip(net.named_parameters(), first.parameters()):
        off = float((found.detach().cpu() - wanted.detach()).abs().max())
        # In float64 rounding is below 1e-12 here; a step that one rank's data misses moves some weight by 1/4096 or more.
        if not off <= 1e-9 * max(1.0, float(wanted.detach().abs().max())):
            faults.append(("join-wrong", "after %d steps with uneven data %s is off by %.3g" % (steps, name, off)))
    states = {"weights": state_bits(net)}
    del model, optimizer
    judge(here, faults, unlike(here, "join-wrong", "after uneven data the weights differ between ranks", states))


def _batches_of(here: RankContext, rank: int) -> int:
    """One for the first rank, three for the last, two for most."""
    return 1 if rank == 0 else 3 if rank == here.world - 1 else 2


def _step_of_the_present(here: RankContext, net: IntegerNet, turn: int) -> None:
    """Their gradients over all ranks: a rank without data adds nothing, and counts."""
    present = [integer_batch(rank, turn, _JOIN_WIDTH) for rank in range(here.world) if turn < _batches_of(here, rank)]
    gradients = gradients_alone(net, present, len(present[0][0]) * here.world)
    with torch.no_grad():
        for name, value in net.named_parameters():
            value -= STEP_SIZE * gradients[name]
