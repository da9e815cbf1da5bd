"""What layers and optimizers are made of beside products: operations element by element, in each way that memory is laid out, and those that
order, pick and add up. All of whole numbers, beside plain Python."""

from __future__ import annotations

import array
import struct
import sys
from typing import Any, Callable, Iterator, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, same_bits

_SHAPE = (5, 12)
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
    for check in (_in_each_layout, _read_and_written, _of_arrays, _rounded, _widened):
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


def _places_read() -> Iterator[Tuple[str, Any, List[Tuple[int, int]]]]:
    """Yield ways to name places of a matrix, and which they are."""
    rows, columns = range(_SHAPE[0]), range(_SHAPE[1])
    told = [(row * 5 + column * 7) % 3 == 0 for row in rows for column in columns]
    yield "x[2]", 2, [(2, column) for column in columns]
    yield "x[1:5:2]", slice(1, 5, 2), [(row, column) for row in (1, 3) for column in columns]
    yield "x[:, -3]", (slice(None), -3), [(row, 9) for row in rows]
    yield "x[..., 2::3]", (..., slice(2, None, 3)), [(row, column) for row in rows for column in columns[2::3]]
    yield "x[-2:, None, 4:6]", (slice(-2, None), None, slice(4, 6)), [(row, column) for row in (3, 4) for column in (4, 5)]
    yield "x[[3, 0, 4]]", torch.tensor([3, 0, 4]), [(row, column) for row in (3, 0, 4) for column in columns]
    yield "x[[4, 1, 2], [2, 7, 0]]", (torch.tensor([4, 1, 2]), torch.tensor([2, 7, 0])), [(4, 2), (1, 7), (2, 0)]
    yield "x[[[1], [3]], [7, 2]]", (torch.tensor([[1], [3]]), torch.tensor([7, 2])), [(1, 7), (1, 2), (3, 7), (3, 2)]
    yield "x[1:4, [7, 2]]", (slice(1, 4), torch.tensor([7, 2])), [(row, column) for row in (1, 2, 3) for column in (7, 2)]
    yield "x[mask]", torch.tensor(told).view(_SHAPE), [divmod(place, len(columns)) for place, one in enumerate(told) if one]
    yield "x[mask of rows]", torch.tensor(told[:5]), [(row, column) for row in rows if told[row] for column in columns]
    yield (
        "x[:, mask of columns]",
        (slice(None), torch.tensor(told[:12])),
        [(row, column) for row in rows for column in columns if told[column]],
    )
    yield "x[:0]", slice(0, 0), []


def _read_and_written(here: RankContext) -> _Found:
    """Read and write places in each way that they can be named, of memory in each layout: what is written into a copy is lost without a word."""
    values = _numbers(37, 1)
    for name, key, places in _places_read():
        keys = (
            tuple(each.to(here.device) if isinstance(each, torch.Tensor) else each for each in key)
            if isinstance(key, tuple)
            else key
        )
        at = [row * _SHAPE[1] + column for row, column in places]
        for layout, one in _laid_out(here, values):
            yield name + layout, one[keys].flatten(), [values[place] for place in at]
            one[keys] = one[keys] + 100
            yield (
                "what was written by %s%s" % (name, layout),
                one,
                [value + 100 * (place in at) for place, value in enumerate(values)],
            )
            one[keys] = 7.0
            yield (
                "the number written by %s%s" % (name, layout),
                one,
                [7.0 if place in at else value for place, value in enumerate(values)],
            )


def _of_arrays(here: RankContext) -> _Found:
    """Hand arrays of NumPy over and back, in each layout and of each kind, with none and with one number: samples come as such."""
    numpy: Any = sys.modules.get("numpy")  # torch imports it where it is
    if not hasattr(numpy, "arange") or not hasattr(torch.arange(1, device="cpu"), "numpy"):
        return
    try:
        torch.from_numpy(numpy.zeros(1))
    except (RuntimeError, TypeError) as error:
        if "numpy" in str(error).lower():
            return  # torch was built without it, or (before 2.3) for NumPy 1 where there is NumPy 2: rules tell of it
        raise
    layouts: Tuple[Callable[[Any], Any], ...] = (
        lambda whole: whole,
        lambda whole: whole.T,
        lambda whole: whole[::2, 1::2],
        lambda whole: whole.reshape(3, 4, 5).transpose(2, 0, 1),
        lambda whole: whole[:0],
        numpy.asfortranarray,
        lambda whole: whole[2:3, 4].reshape(()),
    )
    for kind in ("float32", "float64", "float16", "int64", "int32", "uint8", "bool"):
        for number, lay in enumerate(layouts):
            array = lay(numpy.arange(60).reshape(_SHAPE).astype(kind))
            wanted = [float(value) for value in array.flatten().tolist()]
            name = "of a NumPy array of %s (layout %d)" % (kind, number)
            held = torch.from_numpy(array)
            yield "torch.from_numpy %s" % name, held, wanted
            yield "torch.as_tensor %s" % name, torch.as_tensor(array, device=here.device), wanted
            yield "torch.tensor %s" % name, torch.tensor(array, device=here.device), wanted
            back = held.numpy().flatten().tolist()
            yield "Tensor.numpy() %s" % name, torch.tensor([float(value) for value in back]), wanted
            array[...] = 1
            yield "torch.from_numpy %s that is written into" % name, held, [1.0] * len(wanted)


def _row_values(values: List[float], row: int) -> List[float]:
    return values[row * _SHAPE[1] : (row + 1) * _SHAPE[1]]


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
