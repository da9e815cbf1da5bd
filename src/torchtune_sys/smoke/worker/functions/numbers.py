"""Operators on single numbers, beside plain Python."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Callable, Iterator, Tuple

import torch

from torchtune_sys.smoke.worker.functions.inputs import DOZEN, FEW, Elementwise, distinct, positive
from torchtune_sys.smoke.worker.functions.operators import Operator


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def _gelu_by_tanh(value: float) -> float:
    return value / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))


def operators_of_numbers() -> Iterator[Operator]:
    """Yield what takes one, two and three numbers."""
    for part in (_of_one, _of_two, _of_three, _of_edges, _of_nothing):
        yield from part()


def _of_one() -> Iterator[Operator]:
    any_number, above = distinct(FEW, DOZEN), positive(FEW, DOZEN)
    inside = distinct(FEW, DOZEN, wide=0.5)
    smooth = (
        ("exp", "tm", math.exp), ("expm1", "tm", math.expm1), ("exp2", "tm", lambda one: 2.0**one), ("sin", "tm", math.sin),
        ("cos", "tm", math.cos), ("sinh", "tm", math.sinh), ("cosh", "tm", math.cosh), ("tanh", "tmf", math.tanh),
        ("atan", "tm", math.atan), ("asinh", "tm", math.asinh), ("erf", "tms", math.erf), ("erfc", "tms", math.erfc),
        ("sigmoid", "tmfs", _sigmoid), ("square", "tm", lambda one: one * one), ("abs", "tm", abs), ("neg", "tmo", lambda one: -one),
        ("relu", "tmf", lambda one: max(one, 0.0)), ("silu", "f", lambda one: one * _sigmoid(one)), ("softplus", "f", _softplus),
        ("mish", "f", lambda one: one * math.tanh(_softplus(one))), ("logsigmoid", "f", lambda one: -_softplus(-one)),
        ("elu", "f", lambda one: one if one > 0 else math.expm1(one)), ("leaky_relu", "f", lambda one: one if one > 0 else 0.01 * one),
        ("softsign", "f", lambda one: one / (1 + abs(one))), ("tanhshrink", "f", lambda one: one - math.tanh(one)),
        ("selu", "tf", lambda one: 1.0507009873554805 * (one if one > 0 else 1.6732632423543772 * math.expm1(one))),
        ("hardtanh", "f", lambda one: min(max(one, -1.0), 1.0)), ("relu6", "f", lambda one: min(max(one, 0.0), 6.0)),
        ("hardswish", "f", lambda one: one * min(max(one + 3, 0.0), 6.0) / 6), ("hardsigmoid", "f", lambda one: min(max(one + 3, 0.0), 6.0) / 6),
        ("gelu", "f", lambda one: one * (1 + math.erf(one / math.sqrt(2))) / 2),
    )  # fmt: skip
    for name, homes, work in smooth:
        yield Operator(name, homes, (any_number,), Elementwise(work), by_sixths=name in ("hardswish", "hardsigmoid"))
    yield Operator("gelu", "f", (any_number,), Elementwise(_gelu_by_tanh), {"approximate": "tanh"})
    for name, work in (
        ("log", math.log), ("log2", math.log2), ("log10", math.log10), ("log1p", math.log1p), ("sqrt", math.sqrt),
        ("rsqrt", lambda one: 1 / math.sqrt(one)), ("reciprocal", lambda one: 1 / one), ("lgamma", math.lgamma),
    ):  # fmt: skip
        yield Operator(name, "tm", (above,), Elementwise(work))
    for name, work in (("asin", math.asin), ("acos", math.acos), ("atanh", math.atanh), ("tan", math.tan)):
        yield Operator(name, "tm", (inside,), Elementwise(work))
    for name, work in (
        ("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc), ("round", round), ("frac", lambda one: one - math.trunc(one)),
        ("sign", lambda one: math.copysign(1.0, one)), ("isfinite", math.isfinite), ("isnan", math.isnan), ("logical_not", lambda one: not one),
    ):  # fmt: skip
        yield Operator(name, "tm", (any_number * 2,), Elementwise(work), slope=False)
    yield Operator("nan_to_num", "tm", (any_number,), Elementwise(float))
    for kind in (torch.int64, torch.int32, torch.uint8, torch.bool):
        name = "to(%s)" % str(kind)[6:]
        given = any_number * 2 if kind != torch.uint8 else above * 8
        yield Operator(
            name,
            "",
            (given,),
            Elementwise(bool if kind == torch.bool else int),
            way=lambda one, kind=kind: one.to(kind),
            slope=False,
        )


def _of_two() -> Iterator[Operator]:
    first, row, same = distinct(FEW, DOZEN), distinct(DOZEN, seed=5), distinct(FEW, DOZEN, seed=43)
    above = positive(FEW, DOZEN)
    whole = torch.arange(1, 61).view(FEW, DOZEN) * 37 % 61
    for name, homes, work in (
        ("add", "tmo", operator.add), ("sub", "tmo", operator.sub), ("mul", "tmo", operator.mul), ("div", "tm", operator.truediv),
        ("truediv", "o", operator.truediv), ("maximum", "tm", max), ("minimum", "tm", min), ("atan2", "tm", math.atan2), ("hypot", "tm", math.hypot),
        ("fmax", "tm", max), ("fmin", "tm", min), ("copysign", "tm", math.copysign), ("logaddexp", "tm", lambda one, other: math.log(math.exp(one) + math.exp(other))),
    ):  # fmt: skip
        for other in (row, same):
            yield Operator(
                name,
                homes,
                (first, other),
                Elementwise(work),
                slope=name not in ("maximum", "minimum", "fmax", "fmin", "copysign"),
            )
    yield Operator("pow", "tmo", (above, same), Elementwise(operator.pow))
    yield Operator("pow", "tmo", (first, 3), Elementwise(operator.pow))
    yield Operator(
        "add with alpha",
        "",
        (first, same),
        Elementwise(lambda one, other: one - 3 * other),
        way=lambda one, other: torch.add(one, other, alpha=-3),
    )
    yield Operator("fmod", "tm", (first * 4, above), Elementwise(math.fmod), slope=False, low=False)
    yield Operator("remainder", "tm", (first * 4, above), Elementwise(operator.mod), slope=False, low=False)
    yield Operator("floor_divide", "tm", (first * 4, above), Elementwise(operator.floordiv), slope=False, low=False)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield Operator(name, "tmo", (first, row), Elementwise(getattr(operator, name)), slope=False)
    for name, work in (
        ("add", operator.add), ("mul", operator.mul), ("floor_divide", operator.floordiv), ("remainder", operator.mod),
        ("bitwise_and", operator.and_), ("bitwise_or", operator.or_), ("bitwise_xor", operator.xor),
        ("bitwise_left_shift", lambda one, other: one << other), ("bitwise_right_shift", operator.rshift),
    ):  # fmt: skip
        for kind in (torch.int64, torch.int32):
            yield Operator(name, "tm", (whole.to(kind), (whole % 7 + 1).to(kind)), Elementwise(work), slope=False, low=False)


def _of_three() -> Iterator[Operator]:
    first, second, third = (distinct(FEW, DOZEN, seed=seed) for seed in (37, 43, 49))
    mask = second > 0
    yield Operator("where", "t", (mask, first, third), Elementwise(lambda told, one, other: one if told else other))
    yield Operator("lerp", "tm", (first, second, 0.25), Elementwise(lambda one, other, share: one + share * (other - one)))
    yield Operator("addcmul", "tm", (first, second, third), Elementwise(lambda one, two, three: one + two * three))
    yield Operator("addcdiv", "tm", (first, second, third.abs() + 1), Elementwise(lambda one, two, three: one + two / three))
    yield Operator("clamp", "tm", (first, -0.7, 0.9), Elementwise(lambda one, low, high: min(max(one, low), high)))
    yield Operator("masked_fill", "tm", (first, mask, 7.0), Elementwise(lambda one, told, value: value if told else one))
    batch, told_of_each, others = first.view(FEW, 3, -1), mask[:3, : DOZEN // 3], third[:3, : DOZEN // 3]
    for name, given, work in (
        ("masked_fill", (batch, told_of_each, 7.0), lambda one, told, value: value if told else one),
        ("add", (batch, others), operator.add),
        ("mul", (batch, others), operator.mul),
    ):
        yield Operator(
            name, "tm", given, lambda one, other, *more, work=work: [work(*each, *more) for each in _spread_over(one, other)]
        )


def _spread_over(batch: torch.Tensor, other: torch.Tensor) -> Iterator[Tuple[Any, Any]]:
    """Pair each element of a batch with what stands at its place of that which is spread over it (a mask, a bias)."""
    return zip(batch.flatten().tolist(), other.flatten().tolist() * batch.shape[0])


_MARKS = {"nan": 91.0, "posinf": 92.0, "neginf": -92.0}


def _marked(found: torch.Tensor) -> torch.Tensor:
    """Return what is no number as numbers of its own, which can be compared."""
    wide = found.double()
    wide = torch.where(wide != wide, torch.full_like(wide, _MARKS["nan"]), wide)
    wide = torch.where(wide == math.inf, torch.full_like(wide, _MARKS["posinf"]), wide)
    return torch.where(wide == -math.inf, torch.full_like(wide, _MARKS["neginf"]), wide)


def _of_edges() -> Iterator[Operator]:
    """Yield what is no number, which stays none or is told: what hides it lets a training go on with nonsense."""
    nan, most, least = _MARKS["nan"], _MARKS["posinf"], _MARKS["neginf"]
    odd = torch.tensor([1.0, math.nan, -math.inf, math.inf, -0.0, 2.0], dtype=torch.float64)
    mild = torch.tensor([1.0, -math.inf, 2.0, 0.0], dtype=torch.float64)
    for name, way, wanted in (
        ("isnan", torch.isnan, [0, 1, 0, 0, 0, 0]),
        ("isinf", torch.isinf, [0, 0, 1, 1, 0, 0]),
        ("isfinite", torch.isfinite, [1, 0, 0, 0, 1, 1]),
        ("nan_to_num", lambda one: torch.nan_to_num(one, nan=5.0, posinf=6.0, neginf=-6.0), [1, 5, -6, 6, 0, 2]),
        ("max", torch.max, [nan]),
        ("amin", torch.amin, [nan]),
        ("sum", torch.sum, [nan]),
        ("nansum", lambda one: torch.nansum(one[torch.isfinite(one) | torch.isnan(one)]), [3]),
        ("clamp", lambda one: one.clamp(-3, 3), [1, nan, -3, 3, 0, 2]),
        ("relu", torch.relu, [1, nan, 0, most, 0, 2]),
        ("maximum", lambda one: torch.maximum(one, torch.zeros_like(one)), [1, nan, 0, most, 0, 2]),
        ("exp", torch.exp, [math.e, nan, 0, most, 1, math.e**2]),
        ("1 / x", lambda one: 1 / one, [1, nan, 0, 0, least, 0.5]),
        ("sqrt", torch.sqrt, [1, nan, nan, most, 0, math.sqrt(2)]),
        ("log", lambda one: torch.log(one.abs()), [0, nan, most, most, least, math.log(2)]),
        ("where", lambda one: torch.where(torch.isfinite(one), one, torch.zeros_like(one)), [1, 0, 0, 0, 0, 2]),
    ):  # fmt: skip
        yield Operator("%s of inf and nan" % name, "", (odd,), lambda one, wanted=wanted: wanted, way=_marking(way), slope=False)
    whole = math.e + math.e**2 + 1
    shares = [math.e / whole, 0, math.e**2 / whole, 1 / whole]
    yield Operator(
        "softmax with -inf", "", (mild,), lambda one: shares, way=_marking(lambda one: torch.softmax(one, 0)), slope=False
    )
    yield Operator(
        "logsumexp with -inf",
        "",
        (mild,),
        lambda one: [math.log(whole)],
        way=_marking(lambda one: torch.logsumexp(one, 0)),
        slope=False,
    )


def _marking(way: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda one: _marked(way(one))


def _of_nothing() -> Iterator[Operator]:
    """Yield what makes tensors, and the kind that a mixture of kinds has."""
    for name, way, wanted in (
        ("arange", lambda: torch.arange(2, 11, 3), [2, 5, 8]),
        ("linspace", lambda: torch.linspace(-1, 1, 5), [-1, -0.5, 0, 0.5, 1]),
        ("logspace", lambda: torch.logspace(0, 2, 3), [1, 10, 100]),
        ("full", lambda: torch.full((2, 2), 1.5), [1.5] * 4),
        ("eye", lambda: torch.eye(2), [1, 0, 0, 1]),
        ("zeros and ones", lambda: torch.cat((torch.zeros(2), torch.ones(2), torch.zeros_like(torch.ones(1)))), [0, 0, 1, 1, 0]),
        ("tensor", lambda: torch.tensor([[1, 2], [3, 4]]).t(), [1, 3, 2, 4]),
        ("tolist and item", lambda: torch.tensor([*torch.tensor([1.5, 2.5]).tolist(), torch.tensor(3.5).item()]), [1.5, 2.5, 3.5]),
        ("meshgrid", lambda: torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")), [0, 0, 1, 1, 0, 1, 0, 1]),
        ("a whole number by a float", lambda: torch.arange(3) * 0.5, [0, 0.5, 1]),
        ("a quotient of whole numbers", lambda: torch.arange(3) / 2, [0, 0.5, 1]),
        ("a sum of truth values", lambda: (torch.arange(300) > 9).sum(), [290]),
        ("a sum of bytes", lambda: torch.full((300,), 200, dtype=torch.uint8).sum(), [60000]),
    ):  # fmt: skip
        yield Operator(name, "", (), lambda wanted=wanted: wanted, way=way, slope=False, low=False)
    for one, other, wanted in (
        (torch.int32, torch.float32, torch.float32), (torch.int64, torch.bfloat16, torch.bfloat16), (torch.float32, torch.float64, torch.float64),
        (torch.bfloat16, torch.float16, torch.float32), (torch.uint8, torch.int32, torch.int32), (torch.bool, torch.int64, torch.int64),
    ):  # fmt: skip
        name = "the kind of a sum of %s and %s" % (str(one)[6:], str(other)[6:])
        yield Operator(name, "", (), lambda: [1.0], way=functools.partial(_has_kind, one, other, wanted), slope=False, low=False)


def _has_kind(one: torch.dtype, other: torch.dtype, wanted: torch.dtype) -> torch.Tensor:
    found = torch.ones(2, dtype=one) + torch.ones(2, dtype=other)
    return torch.tensor(float(found.dtype == wanted))
