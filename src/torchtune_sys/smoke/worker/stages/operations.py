"""What layers and optimizers are made of beside products: operations element by element, in each way that memory is laid out, and those that
order, pick and add up. All of whole numbers, beside plain Python."""

from __future__ import annotations

import array
import itertools
import struct
from typing import Any, Callable, Iterator, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, same_bits

_SHAPE = (5, 12)
_LONG = 3001
"""Elements of a running sum: several blocks of each kernel, and a rest. The sums stay below 2**24."""
_Operation = Tuple[str, Callable[[torch.Tensor, torch.Tensor], Any], Callable[[float, float], float]]
_IN_PLACE: Tuple[_Operation, ...] = (
    ("add_", lambda one, other: one.add_(other, alpha=2), lambda a, b: a + 2 * b),
    ("mul_", lambda one, other: one.mul_(other), lambda a, b: a * b),
    ("sub_", lambda one, other: one.sub_(other), lambda a, b: a - b),
    ("addcmul_", lambda one, other: one.addcmul_(other, other, value=2), lambda a, b: a + 2 * b * b),
    ("addcdiv_", lambda one, other: one.addcdiv_(other, torch.full_like(one, 4.0), value=8), lambda a, b: a + 2 * b),
    ("lerp_", lambda one, other: one.lerp_(other, 0.25), lambda a, b: a + (b - a) / 4),
    ("copy_", lambda one, other: one.copy_(other), lambda a, b: b),
    ("masked_fill_", lambda one, other: one.masked_fill_(other > 0, 7.0), lambda a, b: 7.0 if b > 0 else a),
    ("clamp_", lambda one, other: one.clamp_(10, 40), lambda a, b: min(max(a, 10.0), 40.0)),
    ("neg_", lambda one, other: one.neg_(), lambda a, b: -a),
)


def operations_are_right(here: RankContext) -> None:
    """Operations element by element, orders, picks, sums and roundings have their one right answer."""
    for check in (_in_each_layout, _ordered_and_picked, _rounded, _widened):
        for name, found, wanted in check(here):
            differing = same_bits(found, torch.tensor(wanted, dtype=torch.float64).view(found.shape))
            if differing:
                words = (differing, found.numel(), name)
                raise StageFailed("device-computes-wrong", "%d of %d elements of %s are wrong" % words)


_Found = Iterator[Tuple[str, torch.Tensor, List[float]]]


def _numbers(factor: int, low: int) -> List[float]:
    """Return whole numbers, none twice, in no order."""
    count = _SHAPE[0] * _SHAPE[1]
    return [float(place * factor % count + low) for place in range(count)]


def _laid_out(here: RankContext, values: List[float]) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield the same values in order, turned, and with room between them."""
    plain = torch.tensor(values, device=here.device).view(_SHAPE)
    yield "", plain.clone()
    yield " of a transposed tensor", plain.t().contiguous().t()
    apart = torch.zeros(2 * _SHAPE[0], 2 * _SHAPE[1], device=here.device)[::2, 1::2]
    apart.copy_(plain)
    yield " of a slice", apart


def _in_each_layout(here: RankContext) -> _Found:
    """Try memory that is not in a row, too: an in-place operation that misses it leaves weights as they were, without a word
    (https://github.com/pytorch/pytorch/issues/118115 was one)."""
    first, second = _numbers(37, 1), _numbers(23, -30)
    for name, operation, formula in _IN_PLACE:
        wanted = [formula(a, b) for a, b in zip(first, second)]
        for (layout, one), (_, other) in zip(_laid_out(here, first), _laid_out(here, second)):
            operation(one, other)
            yield name + layout, one, wanted
    rows, columns = _SHAPE
    for layout, one in _laid_out(here, first):
        yield "a sum over rows" + layout, one.sum(0), [sum(first[place::columns]) for place in range(columns)]
        yield "a sum over columns" + layout, one.sum(1), [sum(_row_values(first, row)) for row in range(rows)]
        yield "torch.where" + layout, torch.where(one > 30, one, -one), [value if value > 30 else -value for value in first]
        yield "a float64 copy" + layout, one.double(), first


def _row_values(values: List[float], row: int) -> List[float]:
    return values[row * _SHAPE[1] : (row + 1) * _SHAPE[1]]


def _ordered_and_picked(here: RankContext) -> _Found:
    values = _numbers(37, 1)
    one = torch.tensor(values, device=here.device).view(_SHAPE)
    rows = [_row_values(values, row) for row in range(_SHAPE[0])]
    found, places = one.sort(1)
    yield "sort", found, [value for row in rows for value in sorted(row)]
    yield "the places of sort", one.gather(1, places), [value for row in rows for value in sorted(row)]
    found, places = one.topk(3, 1)
    yield "topk", found, [value for row in rows for value in sorted(row)[:-4:-1]]
    yield "the places of topk", one.gather(1, places), [value for row in rows for value in sorted(row)[:-4:-1]]
    yield "argmax", one.argmax(1), [float(row.index(max(row))) for row in rows]
    yield "max", one.amax(1), [max(row) for row in rows]
    picks = [3, 0, 3, 4, 1]
    index = torch.tensor(picks, device=here.device)
    yield "index_select", one.index_select(0, index), [value for pick in picks for value in rows[pick]]
    added = [
        [sum(rows[place][column] for place, pick in enumerate(picks) if pick == row) for column in range(12)] for row in range(5)
    ]
    yield "index_add_ with a row twice", torch.zeros_like(one).index_add_(0, index, one), [v for row in added for v in row]
    spread = index[:, None].expand(_SHAPE)
    yield "scatter_add_ with a row twice", torch.zeros_like(one).scatter_add_(0, spread, one), [v for row in added for v in row]
    yield "cat", torch.cat((one, one[:2]), 0), [value for row in [*rows, *rows[:2]] for value in row]
    yield (
        "tril",
        one.tril(),
        [value if column <= row else 0.0 for row, each in enumerate(rows) for column, value in enumerate(each)],
    )
    long = [float(place * 7 % 11 - 3) for place in range(_LONG)]
    yield "cumsum", torch.tensor(long, device=here.device).cumsum(0), list(itertools.accumulate(long))


def _rounded(here: RankContext) -> _Found:
    """Round to the nearest, halves to even (IEEE 754): what cuts the rest off instead drifts with every step."""
    for dtype, bits in ((torch.bfloat16, 7), (torch.float16, 10)):
        unit = 2.0**-bits
        given = [1 + unit * part for part in (0.25, 0.5, 0.75, 1.5, 2.5, 2.51, 3.49)]
        wanted = [1.0, 1.0, 1 + unit, 1 + 2 * unit, 1 + 2 * unit, 1 + 3 * unit, 1 + 3 * unit]
        both = torch.tensor([*given, *(-value for value in given)], device=here.device)
        yield "a float32 as %s" % str(dtype)[6:], both.to(dtype), [*wanted, *(-value for value in wanted)]


def _widened(here: RankContext) -> _Found:
    """Make float32 of each number of 16 bits, and these of it again: the smallest ones (subnormal numbers) take a way of their own."""
    # Python reads numbers of 16 bits itself; bfloat16 is the upper half of what has 32.
    for dtype, bits, bias, letter, unit in (
        (torch.bfloat16, 7, 127, "f", 1 << 16),
        (torch.float16, 10, 15, "e", 1),
    ):
        count = (2 * bias + 1) << bits  # without infinities and what is no number
        narrow = torch.arange(count, dtype=torch.int16, device=here.device).view(dtype)
        wanted = [*struct.unpack("=%d%s" % (count, letter), array.array("HI"[unit > 1], range(0, count * unit, unit)).tobytes())]
        for name, wide in (("to", narrow.to(torch.float32)), ("float", narrow.float())):
            yield "each %s as float32 (%s)" % (str(dtype)[6:], name), wide, wanted
            yield "each %s that was float32 (%s)" % (str(dtype)[6:], name), wide.to(dtype), wanted
