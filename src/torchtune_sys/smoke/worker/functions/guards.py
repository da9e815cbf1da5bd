"""What compiled code is guarded by: it holds for what it was traced with, and is to be traced anew where that is another."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed


class _Settings(nn.Module):
    """Goes by numbers, flags and lists of Python, its own and given ones, by whether it trains, and by the size of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.noisy, self.shifts = 0.5, False, [1.0, 2.0]

    def forward(self, given: torch.Tensor, flag: bool = False) -> torch.Tensor:
        found = given * self.rate + self.shifts[-1] + len(self.shifts) + given.shape[0]
        if self.noisy:
            found = found + 16
        if self.training:
            found = found * 32
        if flag:
            found = -found
        return found


_CHANGES: Tuple[Tuple[str, Any], ...] = (
    ("rate", 0.25),
    ("noisy", True),
    ("shifts", [1.0, 2.0, 4.0]),
    ("training", True),
)


def guards_hold(here: RankContext) -> None:
    """Check that a compiled model follows the numbers, flags, lists, sizes and the mode (train, eval) that it goes by. Only traced, without a compiler: that takes a twentieth of a second for each.
    Where torch says that it takes a module's attributes for constant, as the first ones with a compiler do (https://github.com/pytorch/pytorch/issues/124717), arguments alone are tried.
    Raises StageFailed."""
    settings = _Settings().eval()
    called = torch.compile(settings, backend="eager", fullgraph=True)
    given = torch.arange(6.0, device=here.device).view(2, 3)
    calls: List[Tuple[str, Dict[str, Any], Tuple[Any, ...]]] = [("everything", {}, (given,))]
    if getattr(torch._dynamo.config, "guard_nn_modules", True):
        calls += [("its %s" % name, {name: value}, (given,)) for name, value in _CHANGES]
    calls += [
        ("an argument", {}, (given, True)),
        ("the size of its input", {}, (given[:1],)),
        ("the type of its input", {}, (given.double() / 3,)),
    ]
    for what, change, args in calls:
        before = {name: getattr(settings, name) for name in change}
        vars(settings).update(change)
        found, right = called(*args).tolist(), settings(*args).tolist()
        vars(settings).update(before)
        if found != right:
            seen = "a compiled model goes on with what %s was when it was compiled: it gives %s, where %s is right"
            raise StageFailed("compiled-differs", seen % (what, found, right))
