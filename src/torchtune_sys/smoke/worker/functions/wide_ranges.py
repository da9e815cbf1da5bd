"""Many different numbers, long rows and odd places, beside float64, plain Python or what must hold of the result.

The tables of operators.py repeat few numbers. A core that is wrong only for some values, in vector instructions or at the end of a row shows here
(Dixit et al., "Silent Data Corruptions at Scale", 2021; Hochschild et al., "Cores that don't count", HotOS 2021).
"""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any, Callable, Iterator, List, Tuple

import torch
from torch.nn import functional

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed

_PRIME = 70001
"""Numbers of a long row: more than 2**16, and no multiple of what a vector or a block holds; a power of each number below it has an inverse."""
_SHORT_ROWS, _SHORT_ROW = 3, 20011
_STEP = 48271
"""Places of a long row in another order: each times this, modulo its length."""
_COLLIDE = 7
_OFF_RANGE, _OFF_ABOUT_ZERO = 2.0**-17, 2.0**-20
"""Of float32, as a share of each number: functions round to some steps of 2**-23. The second is added where a function passes zero."""
_OFF_GELU = 2.0**-18
"""oneDNN's polynomials for AVX-512 are 1.2e-6 off near -3.44, where gelu is 1e-3 (measured with torch 2.13 on Sapphire Rapids; 4.7e-7 with its kernels for AVX2)."""
_OFF_BFLOAT16 = 2.0**-7
_WHOLE = 2003
"""Whole numbers that plain Python computes, too."""
_EXPONENTS = 30
_GUARD = 0xA5
_STARTS, _PIECE_LENGTHS = (0, 1, 3), (1, 7, 17, 63, 65, 255, 1001, 4097)
_PIECE_KINDS = (torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.float64)
_Range = Tuple[str, Callable[[torch.Tensor], torch.Tensor], float, float, float]
"""Name, function, the range of what it is given, and what is added to the bound."""
_RANGES: Tuple[_Range, ...] = (
    ("exp", torch.exp, -80, 80, 0), ("exp2", torch.exp2, -100, 100, 0), ("expm1", torch.expm1, -20, 20, _OFF_ABOUT_ZERO),
    ("log", torch.log, 1e-30, 1e30, _OFF_ABOUT_ZERO), ("log2", torch.log2, 1e-30, 1e30, _OFF_ABOUT_ZERO), ("log1p", torch.log1p, 1e-9, 1e30, 0),
    ("sqrt", torch.sqrt, 1e-30, 1e30, 0), ("rsqrt", torch.rsqrt, 1e-30, 1e30, 0), ("reciprocal", torch.reciprocal, 1e-30, 1e30, 0),
    ("sin", torch.sin, -100, 100, _OFF_ABOUT_ZERO), ("cos", torch.cos, -100, 100, _OFF_ABOUT_ZERO), ("tanh", torch.tanh, -12, 12, _OFF_ABOUT_ZERO),
    ("sigmoid", torch.sigmoid, -60, 60, 0), ("erf", torch.erf, -5, 5, _OFF_ABOUT_ZERO), ("softplus", functional.softplus, -60, 60, 0),
    ("gelu", functional.gelu, -8, 8, _OFF_GELU), ("silu", functional.silu, -60, 60, _OFF_ABOUT_ZERO), ("pow", lambda one: one**1.5, 1e-15, 1e15, 0),
)  # fmt: skip


def wide_ranges_are_right(here: RankContext) -> None:
    """Raise StageFailed for the first number, order, place or sum that is wrong."""
    _arithmetic_is_exact(here)
    _whole_numbers_are_exact(here)
    _functions_follow_over_their_range(here)
    for name, found, wanted in (*_of_long_rows(here), *_of_short_rows(here)):
        is_the_same(name, found, wanted)


def _numbers_between(count: int, seed: int, low: float, high: float) -> torch.Tensor:
    """Return as many numbers of float32, half of them even in the range, half in their exponents."""
    shares = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    even = low + shares * (high - low)
    if low > 0:
        apart = torch.exp(math.log(low) + shares * (math.log(high) - math.log(low)))
    else:
        sizes = 2.0 ** (-_EXPONENTS * (shares * 16 % 1))
        apart = torch.where(shares < 0.5, low * sizes, high * sizes)
    return torch.where(torch.arange(count) % 2 == 0, even, apart).float()


def _words_on_first(name: str, wrong: torch.Tensor, found: torch.Tensor, wanted: torch.Tensor, given: str = "") -> str:
    at = int(wrong.flatten().nonzero()[0])
    words = (int(wrong.sum()), wrong.numel(), name, at, given, float(found.flatten()[at]), float(wanted.flatten()[at]))
    return "%d of %d results of %s are wrong: number %d%s is %.9g, where %.9g is right" % words


def is_the_same(name: str, found: torch.Tensor, wanted: torch.Tensor, cause: str = "device-computes-wrong") -> None:
    """Raise StageFailed where a result has another shape, or any number that is not the right one."""
    found = found.detach().cpu()
    if found.shape != wanted.shape:
        raise StageFailed(cause, "%s gives %s, not %s" % (name, tuple(found.shape), tuple(wanted.shape)))
    wrong = found != wanted
    if bool(wrong.any()):
        raise StageFailed(cause, _words_on_first(name, wrong, found, wanted))


def _arithmetic_is_exact(here: RankContext) -> None:
    """Check that a sum, difference, product or quotient of float32 is what float64 gives, rounded: twice as many bits and two more round alike (Figueroa, "When is double rounding
    innocuous?", 1995). Those of bfloat16 are float32's, rounded."""
    generator = torch.Generator().manual_seed(31)
    first, second = (
        (torch.rand(_PRIME, generator=generator) + 1)
        * 2.0 ** torch.randint(-_EXPONENTS, _EXPONENTS, (_PRIME,), generator=generator)
        * (1 - 2 * torch.randint(0, 2, (_PRIME,), generator=generator))
        for _ in range(2)
    )
    near = first * (1 + second.sign() * 2.0**-9)  # sums of numbers of one size, too: of others the smaller one is lost
    ways: List[Tuple[str, Callable[..., torch.Tensor], torch.Tensor]] = [
        ("mul", torch.mul, second),
        ("add", torch.add, near),
        ("sub", torch.sub, near),
    ]
    ways += [("div", torch.div, second)] if here.kind == "cpu" else []
    for name, way, other in ways:
        wide = way(first.double(), other.double())
        for kind in (torch.float32, torch.bfloat16):
            if kind == torch.float32:
                given, wanted = (first, other), wide.float()
            elif not here.has_bfloat16():
                continue
            else:
                given = (first.bfloat16(), other.bfloat16())
                wanted = way(*(one.float() for one in given)).bfloat16()
            found = way(*(one.to(here.device) for one in given))
            is_the_same("torch.%s of %s" % (name, str(kind)[6:]), found, wanted)


def _whole_numbers_are_exact(here: RankContext) -> None:
    """Beside plain Python, whose whole numbers have no width: 62 bits and more of them, as places in large tensors need."""
    first = [(number * 2654435761 + 12345) % (1 << 40) - (1 << 39) for number in range(1, _WHOLE + 1)]
    second = [(number * 40503 + 7) % (1 << 22) - (1 << 21) or 5 for number in range(1, _WHOLE + 1)]
    small = [a % 30011 for a in first], [b % 30011 or 1 for b in second]
    ways: Tuple[Tuple[str, Callable[..., Any]], ...] = (
        ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b), ("floor_divide", lambda a, b: a // b), ("remainder", lambda a, b: a % b),
        ("bitwise_and", lambda a, b: a & b), ("bitwise_or", lambda a, b: a | b), ("bitwise_xor", lambda a, b: a ^ b), ("lt", lambda a, b: a < b),
    )  # fmt: skip
    for name, way in ways:
        for kind, left, right in ((torch.int64, first, second), (torch.int32, *small)):
            found = way(*(torch.tensor(each, dtype=kind, device=here.device) for each in (left, right)))
            wanted = torch.tensor([int(way(a, b)) for a, b in zip(left, right)])
            is_the_same("torch.%s of %s" % (name, str(kind)[6:]), found, wanted)


def _functions_follow_over_their_range(here: RankContext) -> None:
    for name, function, low, high, added in _RANGES:
        given = _numbers_between(_PRIME, 37, low, high)
        kinds = [torch.float32] + [torch.bfloat16] * (here.level != QUICK and here.has_bfloat16())
        for kind in kinds:
            held = given.to(kind)
            wide = held.double().flip(0)  # in other places than in float32, and with another end
            wanted = function(torch.cat((wide, wide[:3])))[: len(wide)].flip(0)
            try:
                found = function(held.to(here.device)).cpu().double()
            except RuntimeError:
                if kind == torch.float32:
                    raise
                continue  # this release has no such kernel
            share = _OFF_RANGE if kind == torch.float32 else _OFF_BFLOAT16
            wrong = ~((found - wanted).abs() <= share * (wanted.abs() + 2.0**-126) + added * share / _OFF_RANGE)
            if bool(wrong.any()):
                at = int(wrong.nonzero()[0])
                what = "%s of %s" % (name, str(kind)[6:])
                seen = _words_on_first(what, wrong, found, wanted, ", of %.9g," % float(held[at]))
                raise StageFailed("device-computes-wrong", seen)
            if kind == torch.float32 and here.kind == "cpu":
                _pieces_are_alike(name, function, held, wanted, added)


def _pieces_are_alike(
    name: str, function: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor, wanted: torch.Tensor, added: float
) -> None:
    """Few numbers from an odd place on: what a vector does not fill takes other code."""
    for length in range(1, 18):
        start = 2 * length + 1
        found, right = function(given[start : start + length]).double(), wanted[start : start + length]
        wrong = ~((found - right).abs() <= _OFF_RANGE * (right.abs() + 2.0**-126) + added)
        if bool(wrong.any()):
            raise StageFailed("device-computes-wrong", _words_on_first("%s of %d numbers" % (name, length), wrong, found, right))


_Checked = Tuple[str, torch.Tensor, torch.Tensor]


def _of_long_rows(here: RankContext) -> Iterator[_Checked]:
    """Each place once and in another order, so that all that orders, picks and places has one right answer."""
    count, device = _PRIME, here.device
    places = torch.arange(count)
    order = places * _STEP % count
    back = places * pow(_STEP, count - 2, count) % count  # Fermat's little theorem
    mixed, inverse, row = order.to(device), back.to(device), places.to(device)
    for kind in (torch.float32, torch.int64):
        values, name = mixed.to(kind), "of %d %s" % (count, str(kind)[6:])
        yield "sort %s" % name, values.sort()[0], places.to(kind)
        yield "the places of sort %s" % name, values.sort()[1], back
        yield "sort %s, downwards" % name, values.sort(descending=True)[0], places.flip(0).to(kind)
        yield "argsort %s" % name, values.argsort(), back
        yield "topk %s" % name, values.topk(1000)[0], torch.arange(count - 1, count - 1001, -1).to(kind)
        yield "kthvalue %s" % name, values.kthvalue(65601)[0], torch.tensor(65600).to(kind)
        yield "the place of the largest %s" % name, torch.stack((values.argmax(), values.max(0)[1])), back[[-1, -1]]
        yield "unique %s" % name, values.unique(), places.to(kind)
        yield "cummax %s" % name, row.to(kind).cummax(0)[0], places.to(kind)
        few = mixed % 5 - 2
        wanted = torch.tensor([*itertools.accumulate((order % 5 - 2).tolist())])
        yield "cumsum %s" % name, few.to(kind).cumsum(0), wanted
        yield "sum %s" % name, few.to(kind).sum(), wanted[-1]
    for name, found in (
        ("index_select", torch.index_select(mixed, 0, inverse)), ("gather", torch.gather(mixed, 0, inverse)), ("take", torch.take(mixed, inverse)), ("indexing", mixed[inverse]),
        ("embedding", functional.embedding(inverse, mixed[:, None].float())[:, 0]), ("scatter", torch.zeros_like(row).scatter(0, mixed, row)[mixed]),
        ("index_put", torch.zeros_like(row).index_put((mixed,), row)[mixed]), ("index_copy", torch.zeros_like(row).index_copy(0, mixed, row)[mixed]),
        ("searchsorted", torch.searchsorted(row, row)), ("nonzero", torch.ones_like(row).nonzero()[:, 0]), ("masked_select", row.masked_select(row >= 0)),
        ("flip", row.flip(0).flip(0)), ("roll", row.roll(65537).roll(-65537)), ("cat", torch.cat((row[:65537], row[65537:]))), ("diff", row.diff(prepend=row[:1] - 1).cumsum(0) - 1),
    ):  # fmt: skip
        yield "%s of %d places" % (name, count), found, places
    yield from _of_collisions(here, order)


def _of_collisions(here: RankContext, order: torch.Tensor) -> Iterator[_Checked]:
    """Thousands to one place: sums of few bits, which are exact in whatever order."""
    to, add = (order % _COLLIDE).to(here.device), (order % 5 - 2).to(here.device)
    sums, counts = [0] * _COLLIDE, [0] * _COLLIDE
    for place, one in zip((order % _COLLIDE).tolist(), (order % 5 - 2).tolist()):
        sums[place] += one
        counts[place] += 1
    wanted = torch.tensor(sums)
    for kind in (torch.float32, torch.int64):
        none, values, name = (
            torch.zeros(_COLLIDE, dtype=kind, device=here.device),
            add.to(kind),
            "%d %s to %d places" % (len(order), str(kind)[6:], _COLLIDE),
        )
        yield "index_add of %s" % name, none.index_add(0, to, values), wanted
        yield "scatter_add of %s" % name, none.scatter_add(0, to, values), wanted
        yield "scatter_reduce of %s" % name, none.scatter_reduce(0, to, values, "sum"), wanted
        yield "index_put of %s" % name, none.index_put((to,), values, accumulate=True), wanted
    yield "bincount of %d places" % len(order), torch.bincount(to), torch.tensor(counts)


def _of_short_rows(here: RankContext) -> Iterator[_Checked]:
    """Yield the same along either side of a matrix."""
    count = _SHORT_ROW
    places = torch.arange(count)
    order, back = places * _STEP % count, places * pow(_STEP, count - 2, count) % count
    wanted = torch.tensor([*itertools.accumulate((order % 5 - 2).tolist())])
    for dim in (0, 1):

        def rows(values: torch.Tensor, dim: int = dim) -> torch.Tensor:
            lines = values.expand(_SHORT_ROWS, count)
            return (lines.t() if dim == 0 else lines).contiguous()

        mixed, inverse = rows(order).to(here.device), back.to(here.device)
        name = "of %d along dimension %d" % (count, dim)
        yield "sort %s" % name, mixed.float().sort(dim)[0], rows(places).float()
        yield "the places of sort %s" % name, mixed.sort(dim)[1], rows(back)
        yield "cumsum %s" % name, (mixed % 5 - 2).float().cumsum(dim), rows(wanted)
        yield "index_select %s" % name, mixed.index_select(dim, inverse), rows(places)
        yield "gather %s" % name, mixed.gather(dim, rows(back).to(here.device)), rows(places)
        yield "amax %s" % name, mixed.float().amax(dim), torch.full((_SHORT_ROWS,), count - 1.0)


def pieces_arrive(here: RankContext) -> None:
    """Check that what is copied and written from and to any place arrives, and leaves what is beside it. Raises StageFailed."""
    for kind in _PIECE_KINDS:
        width = torch.empty(0, dtype=kind).element_size()
        room = max(_PIECE_LENGTHS) + 8
        given = (torch.arange(room * width) * 37 % 251).to(torch.uint8).to(here.device).view(kind)
        bytes_given = _bytes_of(given)
        for number, length in enumerate(_PIECE_LENGTHS):
            for start in _STARTS:
                to = _STARTS[(number + start) % len(_STARTS)]
                piece = given[start : start + length]
                right = bytes_given[start * width : (start + length) * width]
                what = "%d %s from place %d on" % (length, str(kind)[6:], start)
                for name, made in (("a clone", piece.clone()), ("torch.cat", torch.cat((piece, given[:0])))):
                    if _bytes_of(made) != right:
                        raise StageFailed("memory-corrupts", "%s of %s is not what it was made of" % (name, what))
                for name, write in _writes(piece):
                    into = torch.full((room * width,), _GUARD, dtype=torch.uint8, device=here.device).view(kind)
                    write(into[to : to + length])
                    found = _bytes_of(into)
                    if name == "copy_" and found[to * width : (to + length) * width] != right:
                        raise StageFailed("memory-corrupts", "%s of %s does not arrive at place %d" % (name, what, to))
                    beside = found[: to * width] + found[(to + length) * width :]
                    if beside.strip(bytes([_GUARD])):
                        raise StageFailed(
                            "memory-corrupts", "%s into %d %s changes what is beside them" % (name, length, str(kind)[6:])
                        )


def _writes(piece: torch.Tensor) -> Iterator[Tuple[str, Callable[[torch.Tensor], Any]]]:
    yield "copy_", lambda into: into.copy_(piece)
    yield "fill_", lambda into: into.fill_(3)
    yield "torch.add(out=)", lambda into: torch.add(piece, piece, out=into)
    if piece.is_floating_point():
        yield "exp_", lambda into: into.exp_()


def _bytes_of(values: torch.Tensor) -> bytes:
    """NumPy may be missing, so the memory is read as it is."""
    held = values.cpu()
    return ctypes.string_at(held.data_ptr(), held.numel() * held.element_size())
