"""Tries operators by a table: each under every name that torch has for it, in each precision and memory layout, forward and backward, beside
a formula that takes nothing of what is tried."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.inputs import DOZEN, FEW, Elementwise, Formula, Rowwise, distinct

_REPEATED, _REPEATED_ELSEWHERE, _REPEATED_APART = 70000, 40000, 10000
"""Elements of what is large: in float32 in a row; by another name, backward and in other precisions, more than torch leaves to one thread too (at::internal::GRAIN_SIZE,
32768); in other layouts."""
_OFF_REPEATED = {torch.float64: 2.0**-40, torch.float32: 2.0**-14, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-7}
"""Of what is repeated, as a share of each number."""
_WIDER_OF_SUMS = 2.0**5
"""The gradient of what serves all repetitions is a sum of thousands, whose terms may cancel each other: it was seen to be off by 2**-13 (float32)."""
_EPSILON = 2.0**-20
"""Half a step of a difference quotient in float64: 2**-33 off by what it leaves out and by rounding."""
_OFF_OPERATORS = {torch.float64: 2.0**-40, torch.float32: 2.0**-13, torch.bfloat16: 2.0**-4, torch.float16: 2.0**-6}
"""As a share of the largest element, of some ten to a thousand terms. Some operators are made of several that each round to the low precision."""
_LOW = (torch.bfloat16, torch.float16)
_WIDER_ON_GPU = 2.0**5
"""Products, convolutions and recurrent layers may take TF32 there, which rounds what enters to 11 bits."""
_OFF_BY_SIXTHS = 2.0**-24
"""As a share of the result: a sixth in float32 is off by 2**-25."""
_OFF_SLOPE = 2.0**-11
"""Of a gradient along a direction in float32, as a share of the sum of its terms. An element that is lost or another's moves it by some hundredths."""
_COMPILED_WHEN_CALLED = ("exp2", "erfc", "lgamma", "prod")
"""What torch compiles by NVRTC where a GPU's process calls it first and no earlier one has left it in its cache (aten/src/ATen/native/cuda, jitted_gpu_kernel): 1.5 to
4.3 s each on an H100 host, together a third of ``--quick``."""
_HOMES = {
    "t": ("torch", torch),
    "f": ("torch.nn.functional", torch.nn.functional),
    "m": ("torch.Tensor", torch.Tensor),
    "l": ("torch.linalg", torch.linalg),
    "x": ("torch.fft", torch.fft),
    "s": ("torch.special", torch.special),
    "o": ("operator", operator),
}


class Operator(NamedTuple):
    """One row. ``homes``: letters of where torch has it by this name."""

    name: str
    homes: str
    inputs: Tuple[Any, ...]
    """Tensors of float64 stand for numbers of any precision."""
    formula: Formula
    options: Dict[str, Any] = {}
    slope: bool = True
    """Whether it has a gradient, which is tried too."""
    low: bool = True
    """Whether bfloat16 and float16 are tried: not where a rounding on the way makes another whole number, or the result leaves their range."""
    take: int = -1
    """Which of several results; -1 where there is one."""
    way: Union[Callable[..., Any], None] = None
    """What is called in place of a name."""
    by_sixths: bool = False
    """Whether it divides by six, which CUDA's kernels do by a sixth in float32, in float64 too (ActivationHardswishKernel.cu)."""
    batch: Tuple[int, ...] = ()
    """Which inputs are repeated along their first dimension, so that the result is: others serve all. Those of ``Rowwise`` and ``Elementwise`` are all that have rows."""

    def ways(self) -> Iterator[Tuple[str, Callable[..., Any]]]:
        if self.way is not None:
            yield self.name, self.way
        for letter in self.homes:
            place, home = _HOMES[letter]
            found = getattr(home, self.name, None)
            if found is not None:
                yield "%s.%s" % (place, self.name), found


def table_is_right(here: RankContext, rows: Iterator[Operator], cause: str) -> None:
    """Try each row in each precision (``--quick``: under its further names in float32 alone, forward). Raises StageFailed for the first that
    is wrong: with ``cause``, or as a layer where models call it by torch.nn.functional."""
    more = here.level != QUICK
    passed_over = _COMPILED_WHEN_CALLED if here.kind == "cuda" and not more else ()
    for row in rows:
        if row.name in passed_over:
            continue
        wrong_as = "layer-wrong" if "f" in row.homes and cause == "device-computes-wrong" else cause
        wanted = _asked(row, list(row.inputs))
        rise = _rise_of(row, wanted) if row.slope else None
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            if (dtype in _LOW and not row.low) or (dtype == torch.bfloat16 and not here.has_bfloat16()):
                continue
            for number, (label, way) in enumerate(row.ways()):
                if number and not more and dtype != torch.float32:
                    break
                for layout, given in _given(here, row, dtype):
                    if number and not more and layout:
                        break
                    with unless_it_lacks(dtype):
                        found = _only(row, way(*given, **row.options))
                        if not layout:
                            _inputs_are_kept(here, row, label, given, dtype, wrong_as)
                        _compare_with(
                            row,
                            "%s of %s%s" % (label, str(dtype)[6:], layout),
                            found,
                            wanted,
                            _bound_of(row, here, dtype),
                            wrong_as,
                        )
                if rise is not None and dtype == torch.float32 and (number == 0 or more):
                    _slope_is_right(here, row, label, way, rise, wrong_as)
                if _batch_of(row) and (number == 0 or more) and (dtype == torch.float32 or (more and number == 0)):
                    with unless_it_lacks(dtype):
                        _many_are_right(here, row, label, way, wanted, dtype, wrong_as, more and number == 0)


def _inputs_are_kept(here: RankContext, row: Operator, label: str, given: List[Any], dtype: torch.dtype, cause: str) -> None:
    """Raise StageFailed where a function has changed what it was given."""
    for one, before in zip(given, row.inputs):
        if isinstance(one, torch.Tensor):
            right = _placed(here, before, dtype)
            if not torch.equal(one, right) and bool(((one != right) & (right == right)).any()):  # a NaN is unlike itself
                raise StageFailed(cause, "%s of %s changes what it is given" % (label, str(dtype)[6:]))


def _bound_of(row: Operator, here: RankContext, dtype: torch.dtype) -> float:
    bound = bound_on(here, dtype)
    return max(bound, _OFF_BY_SIXTHS) if row.by_sixths and here.kind == "cuda" else bound


def bound_on(here: RankContext, dtype: torch.dtype) -> float:
    """Return how far from its formula a result may be there, as a share of the largest element."""
    wider = _WIDER_ON_GPU if here.kind == "cuda" and dtype == torch.float32 else 1.0
    return _OFF_OPERATORS[dtype] * wider


def _asked(row: Operator, inputs: List[Any]) -> torch.Tensor:
    found = row.formula(*inputs, **row.options)
    return (
        found.double()
        if isinstance(found, torch.Tensor)
        else torch.tensor([float(value) for value in found], dtype=torch.float64)
    )


def _only(row: Operator, found: Any) -> torch.Tensor:
    return found if row.take < 0 else found[row.take]


@contextlib.contextmanager
def unless_it_lacks(dtype: torch.dtype) -> Iterator[None]:
    """Pass over kernels that are missing in a precision, which they say before they compute anything."""
    try:
        yield
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        lacking = (
            "not implemented for",
            "nsupported",
            "not support",
            "ot yet supported",
            "xpected",
            "must be",
            "Low precision",
            "only",
        )
        if dtype in (torch.float32, torch.float64) or not any(word in str(error) for word in lacking):
            raise


def _is_number(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype == torch.float64


def _placed(here: RankContext, one: Any, dtype: torch.dtype) -> Any:
    if not isinstance(one, torch.Tensor):
        return one
    return one.to(here.device, dtype if _is_number(one) else one.dtype, copy=True)


def _given(here: RankContext, row: Operator, dtype: torch.dtype) -> Iterator[Tuple[str, List[Any]]]:
    """Yield what is handed over: as it is, and in float32 also in memory that is turned, and that has room between its elements."""
    plain = [_placed(here, one, dtype) for one in row.inputs]
    yield "", plain
    if dtype != torch.float32 or not any(_is_number(one) and one.dim() > 1 for one in row.inputs):
        return
    for name, lay in ((", transposed", _turned), (", a slice", _spaced)):
        yield name, [lay(one) if isinstance(one, torch.Tensor) and one.dim() > 1 else one for one in plain]


def _turned(one: torch.Tensor) -> torch.Tensor:
    return one.transpose(-1, -2).contiguous().transpose(-1, -2)


def _spaced(one: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*one.shape[:-1], 2 * one.shape[-1]), dtype=one.dtype, device=one.device)[..., 1::2]
    return wide.copy_(one)


def _channels_last(one: torch.Tensor) -> torch.Tensor:
    """Return rows of a dozen as pictures whose channels are last in memory."""
    return one.reshape(-1, FEW, DOZEN // 3, 3).contiguous(memory_format=torch.channels_last)


_LARGE_LAYOUTS: Tuple[Tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("", lambda one: one),
    (", transposed", _turned),
    (", a slice", _spaced),
    (", channels_last", _channels_last),
)


def _compare_with(row: Operator, what: str, found: torch.Tensor, wanted: torch.Tensor, bound: float, cause: str) -> None:
    values = found.detach().to("cpu", torch.float64)
    if values.numel() != wanted.numel():
        raise StageFailed(cause, "%s has %d elements, not %d" % (what, values.numel(), wanted.numel()))
    if not wanted.numel():
        return
    off = (values.flatten() - wanted.flatten()).abs()
    limit, furthest = bound * max(1.0, float(wanted.abs().max())), float(off.max())
    if not furthest <= limit:
        words = (int((~(off <= limit)).sum()), off.numel(), what, furthest, limit)
        raise StageFailed(cause, "%d of %d elements of %s are wrong, one is off by %.3g (rounding: at most %.3g)" % words)


def _batch_of(row: Operator) -> Tuple[int, ...]:
    """Return the places of what is repeated to try a large size, () where the result would not be as often the same."""
    if isinstance(row.formula, (Rowwise, Elementwise)):
        rows = [one.shape[0] if isinstance(one, torch.Tensor) and one.dim() > 1 else 0 for one in row.inputs]
        return tuple(place for place, count in enumerate(rows) if count > 1 and count == max(rows))
    return row.batch


def _many_are_right(
    here: RankContext,
    row: Operator,
    label: str,
    way: Callable[..., Any],
    wanted: torch.Tensor,
    dtype: torch.dtype,
    cause: str,
    in_all_ways: bool,
) -> None:
    """Try as many of the same numbers as several threads and blocks share: each repetition must give what one gives. ``in_all_ways``: in each layout and backward, too."""
    batch, plain = _batch_of(row), [_placed(here, one, dtype) for one in row.inputs]
    each = max(wanted.numel(), *(plain[place].numel() for place in batch))
    one = _only(row, way(*plain, **row.options)).detach().double().cpu()
    for layout, lay in _LARGE_LAYOUTS if in_all_ways and dtype == torch.float32 else _LARGE_LAYOUTS[:1]:
        if lay is _channels_last and not _is_of_pictures(row, plain):
            continue
        elements = _REPEATED_APART if layout else _REPEATED if in_all_ways and dtype == torch.float32 else _REPEATED_ELSEWHERE
        times = max(2, elements // each + 1)
        given = [_repeated(one, times) if place in batch else one for place, one in enumerate(plain)]
        found = _only(
            row, way(*(lay(one) if place in batch and one.dim() > 1 else one for place, one in enumerate(given)), **row.options)
        )
        what = "%s of %d times %d %s%s" % (label, times, each, str(dtype)[6:], layout)
        _repeats(what, found, one, times, cause)
    if row.slope and in_all_ways and dtype == torch.float32:
        _slopes_repeat(row, label, way, plain, max(2, _REPEATED_ELSEWHERE // each + 1), wanted.numel(), cause)


def _is_of_pictures(row: Operator, plain: List[Any]) -> bool:
    """Whether it is done number by number, so that rows of a dozen may be laid out as pictures."""
    tensors = [one for one in plain if isinstance(one, torch.Tensor)]
    return isinstance(row.formula, Elementwise) and all(one.shape == (FEW, DOZEN) for one in tensors)


def _slopes_repeat(
    row: Operator, label: str, way: Callable[..., Any], plain: List[Any], times: int, count: int, cause: str
) -> None:
    batch = _batch_of(row)
    many = [_repeated(one, times) if place in batch else one for place, one in enumerate(plain)]
    right, found = _slopes(row, way, plain, 1, count), _slopes(row, way, many, times, count)
    for place, one in enumerate(right):
        if one is not None:
            what = "the gradient of %s of %d times %d float32" % (label, times, one.numel())
            each = times if place in batch else 1
            wider = 4.0 if place in batch else _WIDER_OF_SUMS
            _repeats(what, found[place] * (each / times), one.double().cpu().flatten(), each, cause, wider)


def _repeated(one: torch.Tensor, times: int) -> torch.Tensor:
    return one.expand(times, *one.shape).reshape(times * one.shape[0], *one.shape[1:])


def _slopes(row: Operator, way: Callable[..., Any], given: List[Any], times: int, count: int) -> List[Any]:
    """Return the gradients of all that is given, None where there is none. Each repetition gets the same from above."""
    held = [one.clone().requires_grad_() if _has_slope(one) else one for one in given]
    output = _only(row, way(*held, **row.options))
    upstream = distinct(count, seed=43).to(output.device, output.dtype)
    output.backward(upstream.expand(times, count).reshape(output.shape))
    return [one.grad if _has_slope(one) else None for one in held]


def _has_slope(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.is_floating_point()


def _repeats(what: str, found: torch.Tensor, wanted: torch.Tensor, times: int, cause: str, wider: float = 1.0) -> None:
    """Compare with the same in the same precision, where sums in another order, and functions of whole vectors, are off by some steps of each number and of the largest."""
    if found.numel() != times * wanted.numel():
        raise StageFailed(cause, "%s has %d elements, not %d" % (what, found.numel(), times * wanted.numel()))
    values = found.detach().reshape(times, wanted.numel())
    share = (
        wider
        * _OFF_REPEATED.get(values.dtype, 0.0)
        * (_WIDER_ON_GPU if values.is_cuda and values.dtype == torch.float32 else 1.0)
    )
    values = values if values.is_floating_point() else values.double()
    right = wanted.flatten().to(values.device, values.dtype)
    limits = share * (right.abs() + right.abs().max() / 4)
    off = (values - right).abs()
    wrong = ~(off <= limits)
    if bool(wrong.any()):
        at = int(wrong.flatten().nonzero()[0])
        words = (int(wrong.sum()), off.numel(), what, at, float(values.flatten()[at]), float(right[at % len(right)]))
        raise StageFailed(cause, "%d of %d elements of %s are wrong: number %d is %.6g, where one alone gives %.6g" % words)


class _Rise(NamedTuple):
    """By how much a formula rises along one direction, in which every element has a part of its own. ``upstream``: what each element of the result counts."""

    upstream: torch.Tensor
    directions: List[Optional[torch.Tensor]]
    right: float


def _rise_of(row: Operator, wanted: torch.Tensor) -> _Rise:
    """Return it by a difference quotient."""
    upstream = distinct(wanted.numel(), seed=43) if wanted.numel() > 1 else torch.ones(1, dtype=torch.float64)
    directions = [distinct(*one.shape, seed=47) if _is_number(one) else None for one in row.inputs]
    ends = []
    for sign in (1, -1):
        moved = [one if way_of is None else one + sign * _EPSILON * way_of for one, way_of in zip(row.inputs, directions)]
        ends.append(_asked(row, moved).flatten())
    return _Rise(upstream, directions, float(((ends[0] - ends[1]) * upstream).sum()) / (2 * _EPSILON))


def _slope_is_right(here: RankContext, row: Operator, label: str, way: Callable[..., Any], rise: _Rise, cause: str) -> None:
    """Compare the gradient, along one direction, with how much the formula rises there."""
    upstream, directions, right = rise
    held = [_placed(here, one, torch.float32) for one in row.inputs]
    for one, way_of in zip(held, directions):
        if way_of is not None:
            one.requires_grad_()
    output = _only(row, way(*held, **row.options))
    output.backward(upstream.to(here.device, torch.float32).view(output.shape))
    terms = [
        (torch.zeros_like(one) if one.grad is None else one.grad).cpu().double() * way_of
        for one, way_of in zip(held, directions)
        if way_of is not None
    ]
    seen, size = sum(float(each.sum()) for each in terms), sum(float(each.abs().sum()) for each in terms)
    off = _OFF_SLOPE * (_WIDER_ON_GPU if here.kind == "cuda" else 1.0)
    if not abs(seen - right) <= off * max(size, abs(right), 0.1):
        words = (label, seen, right)
        raise StageFailed(cause, "the gradient of %s is wrong: along one direction %.6g, where the formula rises by %.6g" % words)
