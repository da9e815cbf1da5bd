"""Operators on rows and their orders, beside plain Python."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any, Iterator, List

import torch

from torchtune_sys.smoke.worker.functions.inputs import DOZEN, FEW, LONG, Rowwise, distinct
from torchtune_sys.smoke.worker.functions.operators import Operator


def _spread(row: List[float], part: int = 1) -> float:
    mean = sum(row) / len(row)
    return sum((one - mean) ** 2 for one in row) / (len(row) - part)


def _logsumexp(row: List[float]) -> float:
    most = max(row)
    return most + math.log(math.fsum(math.exp(one - most) for one in row))


def _log_shares(row: List[float]) -> List[float]:
    whole = _logsumexp(row)
    return [one - whole for one in row]


def _shares(row: List[float]) -> List[float]:
    whole = _logsumexp(row)
    return [math.exp(one - whole) for one in row]


def operators_of_rows() -> Iterator[Operator]:
    """Yield what makes one number of many, and what orders them."""
    yield from _of_rows()
    yield from _of_orders()


def _of_rows() -> Iterator[Operator]:
    for shape in ((FEW, DOZEN), (2, LONG)):
        rows = distinct(*shape)
        low = shape[1] == DOZEN
        steady = distinct(*shape, wide=0.25) + 1
        for name, homes, work in (
            ("sum", "tm", math.fsum), ("mean", "tm", lambda row: math.fsum(row) / len(row)), ("amax", "tm", max), ("amin", "tm", min),
            ("std", "tm", lambda row: math.sqrt(_spread(row))), ("var", "tm", _spread), ("logsumexp", "tms", _logsumexp),
            ("softmax", "tmf", _shares), ("log_softmax", "tmf", _log_shares),
            ("softmin", "f", lambda row: _shares([-one for one in row])), ("nansum", "tm", math.fsum),
            ("cumsum", "tm", lambda row: [*itertools.accumulate(row)]), ("vector_norm", "l", lambda row: math.sqrt(math.fsum(one * one for one in row))),
        ):  # fmt: skip
            options = {"dim": -1}
            yield Operator(name, homes, (rows,), Rowwise(lambda row, dim, work=work: work(row)), options, low=low)
        yield Operator(
            "norm",
            "tm",
            (rows,),
            Rowwise(lambda row, p, dim: math.sqrt(math.fsum(one * one for one in row))),
            {"p": 2, "dim": 1},
            low=low,
        )
        yield Operator("norm", "tm", (rows,), Rowwise(lambda row, p, dim: math.fsum(map(abs, row))), {"p": 1, "dim": 1}, low=low)
        yield Operator("normalize", "f", (rows,), Rowwise(_unit), low=low)
        if low:
            yield Operator(
                "prod",
                "tm",
                (steady,),
                Rowwise(lambda row, dim: math.prod(row)),
                {"dim": 1},
            )
            yield Operator(
                "cumprod", "tm", (steady,), Rowwise(lambda row, dim: [*itertools.accumulate(row, operator.mul)]), {"dim": 1}
            )
        shares = distinct(shape[1], seed=53)
        bias = distinct(shape[1], seed=59)
        yield Operator("layer_norm", "f", (rows, (shape[1],), shares, bias), _layer_norm_of_rows, low=low)
    long = distinct(1 << 18, wide=1.0) + 0.5
    yield Operator("sum", "tm", (long.round(),), lambda one: [float(one.to(torch.int64).sum())], slope=False, low=False)
    yield Operator("mean", "tm", (long,), lambda one: [math.fsum(one.tolist()) / one.numel()], slope=False, low=False)


def _unit(row: List[float]) -> List[float]:
    length = math.sqrt(math.fsum(one * one for one in row))
    return [one / length for one in row]


def _layer_norm_of_rows(rows: torch.Tensor, _shape: Any, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    off = rows - rows.sum(1, keepdim=True) / rows.shape[1]
    return off / ((off * off).sum(1, keepdim=True) / rows.shape[1] + 1e-5) ** 0.5 * weight + bias


def _ranking(row: List[float], most: bool = False) -> List[int]:
    return sorted(range(len(row)), key=lambda place: row[place], reverse=most)


def _of_orders() -> Iterator[Operator]:
    for shape in ((FEW, DOZEN), (2, LONG)):
        rows, low = distinct(*shape), shape[1] == DOZEN
        last = {"dim": -1}
        yield Operator("sort", "tm", (rows,), Rowwise(lambda row, dim: sorted(row)), last, take=0, low=low)
        yield Operator(
            "sort",
            "tm",
            (rows,),
            Rowwise(lambda row, dim, descending: sorted(row, reverse=True)),
            {**last, "descending": True},
            take=0,
            low=low,
        )
        yield Operator("argsort", "tm", (rows,), Rowwise(lambda row, dim: _ranking(row)), last, slope=False, low=low)
        yield Operator(
            "topk", "tm", (rows, 3), Rowwise(lambda row, count, dim: sorted(row)[: -count - 1 : -1]), last, take=0, low=low
        )
        yield Operator(
            "topk",
            "tm",
            (rows, 3),
            Rowwise(lambda row, count, dim: _ranking(row, True)[:count]),
            last,
            take=1,
            slope=False,
            low=low,
        )
        yield Operator("argmax", "tm", (rows,), Rowwise(lambda row, dim: row.index(max(row))), last, slope=False, low=low)
        yield Operator("argmin", "tm", (rows,), Rowwise(lambda row, dim: row.index(min(row))), last, slope=False, low=low)
        for name, work in (("max", max), ("min", min)):
            yield Operator(name, "tm", (rows,), Rowwise(lambda row, dim, work=work: work(row)), last, take=0, low=low)
            yield Operator(
                name, "tm", (rows,), Rowwise(lambda row, dim, work=work: row.index(work(row))), last, take=1, slope=False, low=low
            )
        yield Operator(
            "cummax", "tm", (rows,), Rowwise(lambda row, dim: [*itertools.accumulate(row, max)]), last, take=0, low=low
        )
        yield Operator("median", "tm", (rows,), Rowwise(lambda row, dim: sorted(row)[(len(row) - 1) // 2]), last, take=0, low=low)
        yield Operator(
            "kthvalue", "tm", (rows, 4), Rowwise(lambda row, place, dim: sorted(row)[place - 1]), last, take=0, low=low
        )
        yield Operator(
            "quantile",
            "tm",
            (rows, 0.5),
            Rowwise(lambda row, share, dim: (sorted(row)[(len(row) - 1) // 2] + sorted(row)[len(row) // 2]) / 2),
            last,
            low=False,
        )
        alike = (rows * 2).round() / 2 + 0.0  # no -0, which torch 2.0 tells apart in bfloat16
        yield Operator(
            "a stable sort",
            "",
            (alike,),
            Rowwise(_ranking),
            way=lambda one: one.sort(dim=-1, stable=True)[1],
            slope=False,
            low=low,
        )
        yield Operator("unique", "t", (alike,), lambda one: sorted({*one.flatten().tolist()}), slope=False, low=low)
        yield Operator(
            "count_nonzero", "tm", (alike,), Rowwise(lambda row, dim: sum(one != 0 for one in row)), last, slope=False, low=low
        )
        yield Operator("any", "tm", (rows > 1.9,), Rowwise(lambda row, dim: any(row)), last, slope=False, low=False)
        yield Operator("all", "tm", (rows > -1.9,), Rowwise(lambda row, dim: all(row)), last, slope=False, low=False)
    edges = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)
    for name, given in (("bucketize", (distinct(60), edges)), ("searchsorted", (edges, distinct(60)))):
        yield Operator(
            name,
            "t",
            given,
            lambda one, other: [sum(edge < value for edge in edges.tolist()) for value in max(one, other, key=len).tolist()],
            slope=False,
            low=False,
        )
    counted = torch.arange(600) * 37 % 7 * (torch.arange(600) % 3 > 0)
    yield Operator(
        "bincount", "tm", (counted,), lambda one: [one.tolist().count(value) for value in range(7)], slope=False, low=False
    )
    yield Operator(
        "histc",
        "tm",
        (distinct(600),),
        lambda one, bins, min, max: [sum(low <= value < low + 1 for value in one.tolist()) for low in range(-2, 2)],
        {"bins": 4, "min": -2, "max": 2},
        slope=False,
        low=False,
    )
