"""Tries the rows of a table of operators: forward in each layout and precision, the gradient along one direction, and the gradient of that."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.inputs import distinct
from torchtune_sys.smoke.worker.functions.operators import (
    NEW_LAYOUTS,
    WIDER_ON_GPU,
    Operator,
    batch_of,
    bound_on,
    given_in_layouts,
    is_number,
    many_are_right,
    only,
    placed,
    unless_it_lacks,
)
from torchtune_sys.smoke.worker.functions.tried import judged_if_new

_EPSILON = 2.0**-20
"""Half a step of a difference quotient in float64: 2**-33 off by what it leaves out and by rounding."""
_OFF_BY_SIXTHS = 2.0**-24
"""As a share of the result: a sixth in float32 is off by 2**-25."""
_OFF_SLOPE = {torch.float64: 2.0**-20, torch.float32: 2.0**-11, torch.bfloat16: 2.0**-3, torch.float16: 2.0**-5}
"""Of a gradient along a direction, as a share of the sum of its terms. An element that is lost or another's moves it by some hundredths."""
_OFF_BEND = 2.0**-14
"""Of a gradient's gradient in float64, the same."""
_COMPILED_WHEN_CALLED = ("exp2", "erfc", "lgamma", "prod")
"""What torch compiles by NVRTC where a GPU's process calls it first and no earlier one has left it in its cache (aten/src/ATen/native/cuda, jitted_gpu_kernel): 1.5 to
4.3 s each on an H100 host, together a third of ``--quick``."""
_LOW = (torch.bfloat16, torch.float16)
_BENDS_BY_THE_COMPILER = ("softsign",)
"""Whose gradient's gradient multiplies by what autograd knows to be 0, which imports torch's compiler: two seconds."""


def table_is_right(here: RankContext, rows: Iterator[Operator], cause: str) -> None:
    """Try each row in each precision (``--quick``: under its further names in float32 alone, forward). Raises StageFailed for the first that
    is wrong: with ``cause``, or as a layer where models call it by torch.nn.functional."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a deviation of no numbers
        for row in rows:
            if here.kind != "cuda" or here.level != QUICK or row.name not in _COMPILED_WHEN_CALLED:
                _row_is_right(here, row, cause)


def _row_is_right(here: RankContext, row: Operator, cause: str) -> None:
    more = here.level != QUICK
    cause = "layer-wrong" if "f" in row.homes and cause == "device-computes-wrong" else cause
    wanted = _asked(row, list(row.inputs))
    rise = _rise_of(row) if row.slope else None
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        if (dtype in _LOW and not row.low) or (dtype == torch.bfloat16 and not here.has_bfloat16()):
            continue
        for number, (label, way) in enumerate(row.ways()):
            if number and not more and dtype != torch.float32:
                break
            _forward_is_right(here, row, label, way, wanted, dtype, cause, bool(number) and not more)
            if (number and not more) or (dtype != torch.float32 and (number or not more)):
                continue
            if rise is not None:
                _slopes_are_right(here, row, label, way, rise, dtype, cause, number == 0)
            if batch_of(row):
                with unless_it_lacks(dtype):
                    many_are_right(here, row, label, way, wanted, dtype, cause, more and number == 0)


def _forward_is_right(
    here: RankContext,
    row: Operator,
    label: str,
    way: Callable[..., Any],
    wanted: torch.Tensor,
    dtype: torch.dtype,
    cause: str,
    in_a_row: bool,
) -> None:
    """``in_a_row``: in no other layout."""
    bound = _bound_of(row, here, dtype)
    for layout, given in given_in_layouts(here, row, dtype):
        if in_a_row and layout:
            return

        def check(here: RankContext, layout: str = layout, given: List[Any] = given) -> None:
            with unless_it_lacks(dtype):
                found = only(row, way(*given, **row.options))
                if not layout:
                    _inputs_are_kept(here, row, label, given, dtype, cause)
                _compare_with("%s of %s%s" % (label, str(dtype)[6:], layout), found, wanted, bound, cause)

        judged_if_new(check, here, layout in NEW_LAYOUTS)


def _inputs_are_kept(here: RankContext, row: Operator, label: str, given: List[Any], dtype: torch.dtype, cause: str) -> None:
    """Raise StageFailed where a function has changed what it was given."""
    for one, before in zip(given, row.inputs):
        if isinstance(one, torch.Tensor):
            right = placed(here, before, dtype)
            if not torch.equal(one, right) and bool(((one != right) & (right == right)).any()):  # a NaN is unlike itself
                raise StageFailed(cause, "%s of %s changes what it is given" % (label, str(dtype)[6:]))


def _bound_of(row: Operator, here: RankContext, dtype: torch.dtype) -> float:
    bound = bound_on(here, dtype)
    return max(bound, _OFF_BY_SIXTHS) if row.by_sixths and here.kind == "cuda" else bound


def _compare_with(what: str, found: torch.Tensor, wanted: torch.Tensor, bound: float, cause: str) -> None:
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


def _asked(row: Operator, inputs: List[Any]) -> torch.Tensor:
    found = row.formula(*inputs, **row.options)
    return (
        found.double()
        if isinstance(found, torch.Tensor)
        else torch.tensor([float(value) for value in found], dtype=torch.float64)
    )


class _Rise(NamedTuple):
    """By how much each of a formula's results rises along one direction, in which every element has a part of its own."""

    directions: List[Optional[torch.Tensor]]
    right: torch.Tensor


def _rise_of(row: Operator) -> _Rise:
    """Return it by a difference quotient."""
    directions = [distinct(*one.shape, seed=47) if is_number(one) else None for one in row.inputs]
    ends = [_asked(row, _moved_along(list(row.inputs), directions, sign * _EPSILON)).flatten() for sign in (1, -1)]
    return _Rise(directions, (ends[0] - ends[1]) / (2 * _EPSILON))


def _moved_along(given: List[Any], directions: List[Optional[torch.Tensor]], by: float) -> List[Any]:
    return [one if way_of is None else one + by * way_of.to(one.device) for one, way_of in zip(given, directions)]


def _upstreams(count: int, in_all_ways: bool) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield what comes from above: numbers of all kinds, and one for all, as of a sum, which has a place in memory for one alone."""
    if count > 1:
        yield "", distinct(count, seed=43)
    if in_all_ways or count == 1:
        yield " of its sum" * (count > 1), torch.ones((), dtype=torch.float64)


def _slopes_are_right(
    here: RankContext,
    row: Operator,
    label: str,
    way: Callable[..., Any],
    rise: _Rise,
    dtype: torch.dtype,
    cause: str,
    in_all_ways: bool,
) -> None:
    """Compare the gradient, along one direction, with how much the formula rises there. ``in_all_ways``: from the default level on in each layout, and with the gradient's own gradient."""
    off = _OFF_SLOPE[dtype] * (WIDER_ON_GPU if here.kind == "cuda" and dtype == torch.float32 else 1.0)
    for layout, given in given_in_layouts(here, row, dtype):
        held = [one if way_of is None else one.requires_grad_() for one, way_of in zip(given, rise.directions)]
        for kind, upstream in _upstreams(rise.right.numel(), in_all_ways):

            def check(
                here: RankContext, held: List[Any] = held, kind: str = layout + kind, upstream: torch.Tensor = upstream
            ) -> None:
                with unless_it_lacks(dtype):
                    output = only(row, way(*held, **row.options))
                    asked = upstream.to(here.device, dtype).expand(output.numel()).view(output.shape)
                    slopes = torch.autograd.grad(output, _those(held, rise), asked, allow_unused=True)
                    right = float((rise.right * upstream).sum())
                    _rises_by(
                        "the gradient of %s of %s%s" % (label, str(dtype)[6:], kind), _along(slopes, rise), right, off, cause
                    )

            judged_if_new(check, here, bool(layout or kind) or dtype != torch.float32)
        if here.level == QUICK or not in_all_ways:
            return
    if dtype == torch.float64 and row.name not in _BENDS_BY_THE_COMPILER:
        judged_if_new(functools.partial(_bends_as_it_must, row=row, label=label, way=way, rise=rise, cause=cause), here)


def _those(held: List[Any], rise: _Rise) -> List[torch.Tensor]:
    return [one for one, way_of in zip(held, rise.directions) if way_of is not None]


def _along(slopes: Sequence[Optional[torch.Tensor]], rise: _Rise) -> List[torch.Tensor]:
    """Return each gradient times its direction. One that autograd knows to be 0 is left out: to reckon with it imports torch's compiler, for seconds."""
    ways_of = [one for one in rise.directions if one is not None]
    return [one.cpu().double() * way for one, way in zip(slopes, ways_of) if one is not None and not one._is_zerotensor()]


def _rises_by(what: str, terms: List[torch.Tensor], right: float, off: float, cause: str) -> None:
    seen, size = sum(float(each.sum()) for each in terms), sum(float(each.abs().sum()) for each in terms)
    if not abs(seen - right) <= off * max(size, abs(right), 0.1):
        words = (what, seen, right)
        raise StageFailed(cause, "%s is wrong: along one direction %.6g, where the formula rises by %.6g" % words)


def _bends_as_it_must(here: RankContext, row: Operator, label: str, way: Callable[..., Any], rise: _Rise, cause: str) -> None:
    """Compare the gradient of a gradient, as penalties on gradients need it, with how much the gradient rises along that direction."""

    def slope_along(by: float) -> Tuple[List[torch.Tensor], torch.Tensor]:
        given = _moved_along([placed(here, one, torch.float64) for one in row.inputs], rise.directions, by)
        held = _those([one if way_of is None else one.requires_grad_() for one, way_of in zip(given, rise.directions)], rise)
        output = only(row, way(*given, **row.options))
        _, upstream = next(_upstreams(rise.right.numel(), True))
        asked = upstream.to(here.device).expand(output.numel()).view(output.shape)
        slopes = torch.autograd.grad(output, held, asked, create_graph=not by, allow_unused=True)
        return held, sum((each.sum() for each in _along(slopes, rise)), torch.zeros((), dtype=torch.float64))

    try:
        held, along = slope_along(0.0)
        bends = torch.autograd.grad(along, held, allow_unused=True) if along.requires_grad else ()
        ends = [float(slope_along(sign * _EPSILON)[1]) for sign in (1, -1)]
    except RuntimeError as error:
        if any(words in str(error) for words in ("not implemented", "once_differentiable", "not supported")):
            return
        raise
    right = (ends[0] - ends[1]) / (2 * _EPSILON)
    _rises_by("the gradient of the gradient of %s" % label, _along(bends, rise), right, _OFF_BEND, cause)
