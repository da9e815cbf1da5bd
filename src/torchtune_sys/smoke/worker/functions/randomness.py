"""What torch draws: each way of drawing has its mean, its spread and its bounds, repeats nothing, and no draw tells of another."""

from __future__ import annotations

import math
from typing import Callable, Iterator, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed

_COUNT = 1 << 13
_DEVIATIONS = 7.0
"""Of the standard error, by the same seed each time: chance has no part in the verdict."""
_NO_BOUND = math.inf
_MANY, _PAIRS_BY_CHANCE = 150001, 3
"""Draws of 24 bits and more: 10**10 pairs of pairs, of which one in 2**48 is alike by chance."""
_Draw = Tuple[str, Callable[[], torch.Tensor], float, float, float, float]
"""Name, draws, mean, variance, and between which values they lie."""


def draws_are_random(here: RankContext) -> None:
    """Raise StageFailed for the first way of drawing that is off."""
    torch.manual_seed(21)
    for name, draw, mean, variance, low, high in (*_ways_to_draw(here), *_ways_to_begin(here)):
        values = draw().detach().cpu().double().flatten()
        wrong = _off_in(values, mean, variance, low, high) or _repeats_in(values)
        if wrong:
            raise StageFailed("random-numbers-wrong", "%d draws of %s %s" % (len(values), name, wrong))
    for name, work in _many_draws(here):
        twice = _pairs_that_come_twice(work())
        if twice > _PAIRS_BY_CHANCE:
            seen = "%d draws of %s repeat themselves: %d pairs of neighbours come twice" % (_MANY, name, twice)
            raise StageFailed("random-numbers-wrong", seen)


def _many_draws(here: RankContext) -> Iterator[Tuple[str, Callable[[], torch.Tensor]]]:
    """Yield what takes several blocks of a generator, and several threads."""
    yield "torch.randn", lambda: torch.randn(_MANY, device=here.device)
    yield "torch.rand", lambda: torch.rand(_MANY, device=here.device)
    yield "Tensor.normal_", lambda: torch.empty(_MANY, device=here.device).normal_()
    yield "torch.randint", lambda: torch.randint(0, 1 << 30, (_MANY,), device=here.device, dtype=torch.int32)


def _pairs_that_come_twice(values: torch.Tensor) -> int:
    """Count pairs of neighbours that are another pair's, at whatever distance: of so many by chance none, or one."""
    bits = values.cpu().view(torch.int32).long()
    pairs = (bits[:-1] << 32 | bits[1:] & 0xFFFFFFFF).sort()[0]
    return int((pairs[1:] == pairs[:-1]).sum())


def _off_in(values: torch.Tensor, mean: float, variance: float, low: float, high: float) -> str:
    count, found = len(values), (float(values.mean()), float(values.var()))
    spread = float(((values - values.mean()) ** 2 - values.var()).std()) / math.sqrt(count)
    if not abs(found[0] - mean) <= _DEVIATIONS * math.sqrt(variance / count):
        return "have mean %.3g, where %.3g is right" % (found[0], mean)
    if not abs(found[1] - variance) <= _DEVIATIONS * max(spread, 1e-9):
        return "have variance %.3g, where %.3g is right" % (found[1], variance)
    if not (float(values.min()) >= low and float(values.max()) <= high):
        return "lie between %.3g and %.3g, where %.3g and %.3g are the bounds" % (
            float(values.min()),
            float(values.max()),
            low,
            high,
        )
    return ""


def _repeats_in(values: torch.Tensor) -> str:
    """Compare the row with itself, moved by each number of places at once: the transform of its power. Where nothing tells of anything all are small."""
    count = len(values)
    off = (values - values.mean()) / values.std()
    wide = torch.fft.rfft(torch.cat((off, torch.zeros_like(off))))
    alike = torch.fft.irfft(wide * wide.conj(), n=2 * count)[1:count] / torch.arange(count - 1, 0, -1).double().sqrt()
    place = int(alike[: count - 64].abs().argmax())
    if abs(float(alike[place])) > _DEVIATIONS:
        return "repeat themselves: a draw tells of that %d places on (%.0f standard deviations)" % (
            place + 1,
            abs(float(alike[place])),
        )
    return ""


def _ways_to_draw(here: RankContext) -> Iterator[_Draw]:
    device, own = here.device, torch.Generator(here.device).manual_seed(22)
    empty = torch.empty(_COUNT, device=device)
    yield "torch.rand", lambda: torch.rand(_COUNT, device=device), 0.5, 1 / 12, 0.0, 1.0
    yield "torch.randn", lambda: torch.randn(_COUNT, device=device), 0.0, 1.0, -6.0, 6.0
    yield "torch.randn of a generator", lambda: torch.randn(_COUNT, device=device, generator=own), 0.0, 1.0, -6.0, 6.0
    yield "torch.randn in rows", lambda: torch.randn(64, _COUNT // 64, device=device), 0.0, 1.0, -6.0, 6.0
    yield "torch.rand_like", lambda: torch.rand_like(empty), 0.5, 1 / 12, 0.0, 1.0
    yield "torch.randn_like", lambda: torch.randn_like(empty), 0.0, 1.0, -6.0, 6.0
    yield "torch.normal", lambda: torch.normal(empty.fill_(2.0), 3.0), 2.0, 9.0, -16.0, 20.0
    yield "torch.randint", lambda: torch.randint(-8, 8, (_COUNT,), device=device), -0.5, 255 / 12, -8, 7
    yield (
        "torch.randint of large numbers",
        lambda: torch.randint(0, 1 << 40, (_COUNT,), device=device) / 2.0**40,
        0.5,
        1 / 12,
        0.0,
        1.0,
    )
    yield "torch.randperm", lambda: torch.randperm(_COUNT, device=device) / (_COUNT - 1), 0.5, 1 / 12, 0.0, 1.0
    yield "Tensor.uniform_", lambda: empty.uniform_(-2.0, 6.0), 2.0, 64 / 12, -2.0, 6.0
    yield "Tensor.normal_", lambda: empty.normal_(1.0, 0.5), 1.0, 0.25, -2.0, 4.0
    yield "Tensor.exponential_", lambda: empty.exponential_(2.0), 0.5, 0.25, 0.0, 12.0
    yield "Tensor.bernoulli_", lambda: empty.bernoulli_(0.3), 0.3, 0.21, 0.0, 1.0
    yield "torch.poisson", lambda: torch.poisson(torch.full((_COUNT,), 4.0, device=device)), 4.0, 4.0, 0.0, 30.0
    yield (
        "torch.multinomial",
        lambda: torch.multinomial(torch.ones(4, device=device), _COUNT, replacement=True),
        1.5,
        1.25,
        0.0,
        3.0,
    )


def _ways_to_begin(here: RankContext) -> Iterator[_Draw]:
    """Weights as layers begin with them: too wide or too narrow a start lets deep models diverge."""
    weights = torch.empty(128, 64, device=here.device)
    for name, work, variance, bound in (
        ("kaiming_normal_", lambda: nn.init.kaiming_normal_(weights, nonlinearity="relu"), 2 / 64, _NO_BOUND),
        ("kaiming_uniform_", lambda: nn.init.kaiming_uniform_(weights, nonlinearity="relu"), 2 / 64, math.sqrt(6 / 64)),
        ("xavier_normal_", lambda: nn.init.xavier_normal_(weights), 2 / 192, _NO_BOUND),
        ("xavier_uniform_", lambda: nn.init.xavier_uniform_(weights), 2 / 192, math.sqrt(6 / 192)),
        ("trunc_normal_", lambda: nn.init.trunc_normal_(weights, std=0.02), 0.02**2, 2.0),
    ):  # fmt: skip
        high = bound * 1.0001
        yield "nn.init.%s" % name, work, 0.0, variance, -high, high
    linear = nn.Linear(64, 128).to(here.device)
    yield "nn.Linear's first weights", lambda: linear.weight, 0.0, 1 / (3 * 64), -0.125001, 0.125001
    table = nn.Embedding(128, 64).to(here.device)
    yield "nn.Embedding's first weights", lambda: table.weight, 0.0, 1.0, -6.0, 6.0
