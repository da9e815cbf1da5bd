"""Tries operators by a table: each under every name that torch has for it, in each precision and memory layout, forward and backward, beside
a formula that takes nothing of what is tried."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple, Union

import torch

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed

Formula = Callable[..., Any]
"""Of tensors of float64 (and of whole numbers, truth values and options as they are); returns a tensor, or numbers in the order of its elements."""
FEW, DOZEN, MANY = 5, 12, 263
"""60 numbers that bfloat16 holds, too; and rows of more numbers than one block of a kernel takes."""
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

    def ways(self) -> Iterator[Tuple[str, Callable[..., Any]]]:
        if self.way is not None:
            yield self.name, self.way
        for letter in self.homes:
            place, home = _HOMES[letter]
            found = getattr(home, self.name, None)
            if found is not None:
                yield "%s.%s" % (place, self.name), found


def distinct(*shape: int, seed: int = 37, wide: float = 2.0) -> torch.Tensor:
    """Numbers around 0, none of them 0 and none twice, in no order. Up to 128 of them are exact in bfloat16 for a ``wide`` that is a power of two times their number."""
    count = math.prod(shape)
    halves = 1 << max(count - 1, 1).bit_length()
    places = torch.arange(count, dtype=torch.int64) * seed % count
    return ((places.double() - count // 2 + 0.5) * (2 * wide / halves)).view(shape)


def positive(*shape: int, seed: int = 41) -> torch.Tensor:
    return distinct(*shape, seed=seed).abs() + 0.25


def rowwise(work: Callable[..., Any]) -> Formula:
    """Return a formula that takes each row of its first tensor as a list of numbers, and returns a number or a list for it."""

    def formula(rows: torch.Tensor, *others: Any, **options: Any) -> List[Any]:
        found = [work(row, *others, **options) for row in rows.tolist()]
        return [value for each in found for value in (each if isinstance(each, list) else [each])]

    return formula


def elementwise(work: Callable[..., float]) -> Formula:
    """Return a formula of numbers; of two tensors, one of which may be a row for all."""

    def formula(*given: Any, **options: Any) -> torch.Tensor:
        tensors = torch.broadcast_tensors(*(one for one in given if isinstance(one, torch.Tensor)))
        numbers = [one for one in given if not isinstance(one, torch.Tensor)]
        values = [work(*each, *numbers) for each in zip(*(one.flatten().tolist() for one in tensors))]
        return torch.tensor(values, dtype=torch.float64).view(tensors[0].shape)

    return formula


def table_is_right(here: RankContext, rows: Iterator[Operator], cause: str) -> None:
    """Try each row in each precision. Raises StageFailed for the first that is wrong: with ``cause``, or as a layer where models call it by torch.nn.functional."""
    passed_over = _COMPILED_WHEN_CALLED if here.kind == "cuda" and here.level == QUICK else ()
    for row in rows:
        if row.name in passed_over:
            continue
        wrong_as = "layer-wrong" if "f" in row.homes and cause == "device-computes-wrong" else cause
        wanted = _asked(row, list(row.inputs))
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            if (dtype in _LOW and not row.low) or (dtype == torch.bfloat16 and not here.has_bfloat16()):
                continue
            for label, way in row.ways():
                for layout, given in _given(here, row, dtype):
                    with _unless_it_lacks(dtype):
                        found = _only(row, way(*given, **row.options))
                        _compare_with(
                            row,
                            "%s of %s%s" % (label, str(dtype)[6:], layout),
                            found,
                            wanted,
                            _bound_of(row, here, dtype),
                            wrong_as,
                        )
                if row.slope and dtype == torch.float32:
                    _slope_is_right(here, row, label, way, wanted, wrong_as)


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
def _unless_it_lacks(dtype: torch.dtype) -> Iterator[None]:
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


def _compare_with(row: Operator, what: str, found: torch.Tensor, wanted: torch.Tensor, bound: float, cause: str) -> None:
    values = found.detach().to("cpu", torch.float64)
    if values.numel() != wanted.numel():
        raise StageFailed(cause, "%s has %d elements, not %d" % (what, values.numel(), wanted.numel()))
    off = (values.flatten() - wanted.flatten()).abs()
    limit = bound * max(1.0, float(wanted.abs().max())) if wanted.numel() else 0.0
    wrong = int((~(off <= limit)).sum())
    if wrong:
        words = (wrong, off.numel(), what, float(off.max()), limit)
        raise StageFailed(cause, "%d of %d elements of %s are wrong, one is off by %.3g (rounding: at most %.3g)" % words)


def _slope_is_right(
    here: RankContext, row: Operator, label: str, way: Callable[..., Any], wanted: torch.Tensor, cause: str
) -> None:
    """Beside a difference quotient of the formula along one direction, in which every element has a part of its own."""
    upstream = distinct(wanted.numel(), seed=43) if wanted.numel() > 1 else torch.ones(1, dtype=torch.float64)
    directions = [distinct(*one.shape, seed=47) if _is_number(one) else None for one in row.inputs]
    ends = []
    for sign in (1, -1):
        moved = [one if way_of is None else one + sign * _EPSILON * way_of for one, way_of in zip(row.inputs, directions)]
        ends.append(_asked(row, moved).flatten())
    right = float(((ends[0] - ends[1]) * upstream).sum()) / (2 * _EPSILON)
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
