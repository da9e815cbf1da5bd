"""Operators as rows of a table: each under every name that torch has for it, in each precision and memory layout, few numbers and many, beside
a formula that takes nothing of what is tried."""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple, Union

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.inputs import DOZEN, FEW, Elementwise, Formula, Rowwise, distinct
from torchtune_sys.smoke.worker.functions.tried import judged_if_new

_REPEATED, _REPEATED_ELSEWHERE, _REPEATED_APART = 70000, 40000, 10000
"""Elements of what is large: in float32 in a row; by another name, backward and in other precisions, more than torch leaves to one thread too (at::internal::GRAIN_SIZE,
32768); in other layouts."""
_OFF_REPEATED = {torch.float64: 2.0**-40, torch.float32: 2.0**-14, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-7}
"""Of what is repeated, as a share of each number."""
_WIDER_OF_SUMS = 2.0**5
"""The gradient of what serves all repetitions is a sum of thousands, whose terms may cancel each other: it was seen to be off by 2**-13 (float32)."""
_OFF_OPERATORS = {torch.float64: 2.0**-40, torch.float32: 2.0**-13, torch.bfloat16: 2.0**-4, torch.float16: 2.0**-6}
"""As a share of the largest element, of some ten to a thousand terms. Some operators are made of several that each round to the low precision."""
WIDER_ON_GPU = 2.0**5
"""Products, convolutions and recurrent layers may take TF32 there, which rounds what enters to 11 bits."""
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


def bound_on(here: RankContext, dtype: torch.dtype) -> float:
    """Return how far from its formula a result may be there, as a share of the largest element."""
    wider = WIDER_ON_GPU if here.kind == "cuda" and dtype == torch.float32 else 1.0
    return _OFF_OPERATORS[dtype] * wider


def only(row: Operator, found: Any) -> torch.Tensor:
    return found if row.take < 0 else found[row.take]


@contextlib.contextmanager
def unless_it_lacks(dtype: torch.dtype) -> Iterator[None]:
    """Pass over kernels that are missing in a precision, which they say before they compute anything."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
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


def is_number(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.dtype == torch.float64


def placed(here: RankContext, one: Any, dtype: torch.dtype) -> Any:
    if not isinstance(one, torch.Tensor):
        return one
    return one.to(here.device, dtype if is_number(one) else one.dtype, copy=True)


def given_in_layouts(here: RankContext, row: Operator, dtype: torch.dtype) -> Iterator[Tuple[str, List[Any]]]:
    """Yield what is handed over: as it is, and in float32 also in memory that is turned, and that has room between its elements."""
    plain = [placed(here, one, dtype) for one in row.inputs]
    yield "", plain
    if dtype != torch.float32 or not any(is_number(one) and one.dim() > 1 for one in row.inputs):
        return
    for name, lay, least in _LAYOUTS:
        if max(one.dim() for one in plain if isinstance(one, torch.Tensor)) >= least:
            yield name, [lay(one) if isinstance(one, torch.Tensor) and one.dim() >= least else one for one in plain]


def _turned(one: torch.Tensor) -> torch.Tensor:
    return one.transpose(-1, -2).contiguous().transpose(-1, -2)


def _crossed(one: torch.Tensor) -> torch.Tensor:
    """Lay out the second dimension behind the third, as heads are that a layer gave side by side."""
    return one.transpose(1, 2).contiguous().transpose(1, 2)


def _spaced(one: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*one.shape[:-1], 2 * one.shape[-1]), dtype=one.dtype, device=one.device)[..., 1::2]
    return wide.copy_(one)


_LAYOUTS: Tuple[Tuple[str, Callable[[torch.Tensor], torch.Tensor], int], ...] = (
    (", transposed", _turned, 2),
    (", a slice", _spaced, 2),
    (", channels_last", lambda one: one.contiguous(memory_format=torch.channels_last) if one.dim() == 4 else one, 4),
    (", whose middle dimensions are transposed", _crossed, 4),
)
"""With the least number of dimensions for which each differs from those before it."""
NEW_LAYOUTS = tuple(name for name, _, least in _LAYOUTS if least == 4)


def _channels_last(one: torch.Tensor) -> torch.Tensor:
    """Return rows of a dozen as pictures whose channels are last in memory."""
    return one.reshape(-1, FEW, DOZEN // 3, 3).contiguous(memory_format=torch.channels_last)


_LARGE_LAYOUTS: Tuple[Tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("", lambda one: one),
    (", transposed", _turned),
    (", a slice", _spaced),
    (", channels_last", _channels_last),
)


def batch_of(row: Operator) -> Tuple[int, ...]:
    """Return the places of what is repeated to try a large size, () where the result would not be as often the same."""
    if isinstance(row.formula, (Rowwise, Elementwise)):
        rows = [one.shape[0] if isinstance(one, torch.Tensor) and one.dim() > 1 else 0 for one in row.inputs]
        return tuple(place for place, count in enumerate(rows) if count > 1 and count == max(rows))
    return row.batch


def many_are_right(
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
    batch, plain = batch_of(row), [placed(here, one, dtype) for one in row.inputs]
    each = max(wanted.numel(), *(plain[place].numel() for place in batch))
    one = only(row, way(*plain, **row.options)).detach().double().cpu()
    none = [each[:0] if place in batch else each for place, each in enumerate(plain)]
    what = "%s of no %s" % (label, str(dtype)[6:])
    judged_if_new(functools.partial(_none_are_right, row=row, what=what, way=way, given=none, full=one, cause=cause), here)
    for layout, lay in _LARGE_LAYOUTS if in_all_ways and dtype == torch.float32 else _LARGE_LAYOUTS[:1]:
        if lay is _channels_last and not _is_of_pictures(row, plain):
            continue
        elements = _REPEATED_APART if layout else _REPEATED if in_all_ways and dtype == torch.float32 else _REPEATED_ELSEWHERE
        times = max(2, elements // each + 1)
        given = [_repeated(one, times) if place in batch else one for place, one in enumerate(plain)]
        found = only(
            row, way(*(lay(one) if place in batch and one.dim() > 1 else one for place, one in enumerate(given)), **row.options)
        )
        what = "%s of %d times %d %s%s" % (label, times, each, str(dtype)[6:], layout)
        _repeats(what, found, one, times, cause)
    if row.slope and in_all_ways and dtype == torch.float32:
        _slopes_repeat(row, label, way, plain, max(2, _REPEATED_ELSEWHERE // each + 1), wanted.numel(), cause)


def _none_are_right(
    here: RankContext, row: Operator, what: str, way: Callable[..., Any], given: List[Any], full: torch.Tensor, cause: str
) -> None:
    """Try a batch without samples, as an expert without words has it: what is refused says so, what is not has no samples of the same size."""
    try:
        found = only(row, way(*given, **row.options))
    except (RuntimeError, IndexError, ValueError):
        return
    if found.shape != (0, *full.shape[1:]):
        raise StageFailed(cause, "%s gives %s, not %s" % (what, tuple(found.shape), (0, *full.shape[1:])))


def _is_of_pictures(row: Operator, plain: List[Any]) -> bool:
    """Whether it is done number by number, so that rows of a dozen may be laid out as pictures."""
    tensors = [one for one in plain if isinstance(one, torch.Tensor)]
    return isinstance(row.formula, Elementwise) and all(one.shape == (FEW, DOZEN) for one in tensors)


def _slopes_repeat(
    row: Operator, label: str, way: Callable[..., Any], plain: List[Any], times: int, count: int, cause: str
) -> None:
    batch = batch_of(row)
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
    output = only(row, way(*held, **row.options))
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
        wider * _OFF_REPEATED.get(values.dtype, 0.0) * (WIDER_ON_GPU if values.is_cuda and values.dtype == torch.float32 else 1.0)
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
