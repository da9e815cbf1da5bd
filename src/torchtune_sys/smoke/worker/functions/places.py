"""Operators that pick, place and move, beside plain Python."""

from __future__ import annotations

import itertools
import math
from typing import Callable, Iterator, List

import torch

from torchtune_sys.smoke.worker.functions.inputs import DOZEN, FEW, MANY, distinct
from torchtune_sys.smoke.worker.functions.operators import Operator


def _placed_at(
    rows: torch.Tensor, index: torch.Tensor, source: torch.Tensor, fold: Callable[[List[float]], float]
) -> List[float]:
    """Do what scatter does along the first dimension, where several come to one place."""
    found = [[[one] for one in row] for row in rows.tolist()]
    for picks, values in zip(index.tolist(), source.tolist()):
        for column, (pick, value) in enumerate(zip(picks, values)):
            found[pick][column].append(value)
    return [fold(each) for row in found for each in row]


def _picked(rows: torch.Tensor, index: torch.Tensor) -> List[float]:
    values = rows.tolist()
    return [values[pick][column] for picks in index.tolist() for column, pick in enumerate(picks)]


def _rows_at(rows: torch.Tensor, index: torch.Tensor) -> List[float]:
    values = rows.tolist()
    return [value for pick in index.tolist() for value in values[pick]]


def _told(rows: torch.Tensor, mask: torch.Tensor) -> List[float]:
    return [value for value, told in zip(rows.flatten().tolist(), mask.flatten().tolist()) if told]


def operators_of_places() -> Iterator[Operator]:
    """Yield what works by place, and what moves all."""
    yield from _of_places()
    yield from _of_shapes()


def _of_places() -> Iterator[Operator]:
    for shape in ((FEW, DOZEN), (FEW, MANY)):
        rows, more, low = distinct(*shape), distinct(*shape, seed=43), shape[1] == DOZEN
        index = (torch.arange(shape[0] * shape[1]) * 7 % 11 % FEW).view(shape)
        picks = torch.tensor([3, 0, 3, 4, 1, 3])
        yield Operator("gather", "tm", (rows, 0, index), lambda one, dim, at: _picked(one, at), low=low)
        yield Operator("take_along_dim", "tm", (rows, index, 0), lambda one, at, dim: _picked(one, at), low=low)
        yield Operator(
            "scatter_add",
            "tm",
            (rows, 0, index, more),
            lambda one, dim, at, given: _placed_at(one, at, given, math.fsum),
            low=low,
        )
        for reduce, fold in (
            ("sum", math.fsum),
            ("amax", max),
            ("amin", min),
            ("mean", lambda each: math.fsum(each) / len(each)),
        ):
            yield Operator(
                "scatter_reduce",
                "tm",
                (rows, 0, index, more, reduce),
                lambda one, dim, at, given, how, fold=fold: _placed_at(one, at, given, fold),
                low=low,
                slope=reduce in ("sum", "mean"),
            )
        once = (torch.arange(shape[1])[None] + torch.arange(FEW)[:, None]) % FEW
        yield Operator(
            "scatter",
            "tm",
            (rows, 0, once, more),
            lambda one, dim, at, given: _placed_at(one, at, given, lambda each: each[-1]),
            low=low,
        )
        yield Operator("index_select", "tm", (rows, 0, picks), lambda one, dim, at: _rows_at(one, at), low=low, batch=(2,))
        given = distinct(6, shape[1], seed=43)
        yield Operator(
            "index_add",
            "tm",
            (rows, 0, picks, given),
            lambda one, dim, at, added: _placed_at(one, at[:, None].expand(6, one.shape[1]), added, math.fsum),
            low=low,
        )
        yield Operator(
            "index_put",
            "tm",
            (rows, (picks,), given, True),
            lambda one, at, added, _sum: _placed_at(one, at[0][:, None].expand(6, one.shape[1]), added, math.fsum),
            low=low,
        )
        yield Operator(
            "index_fill",
            "tm",
            (rows, 0, picks, 3.0),
            lambda one, dim, at, value: [
                value if number != 2 else each for number, row in enumerate(one.tolist()) for each in row
            ],
            low=low,
        )
        yield Operator("indexing", "", (rows, picks), _rows_at, way=lambda one, at: one[at], low=low, batch=(1,))
        yield Operator("indexing by truth values", "", (rows, more > 0), _told, way=lambda one, mask: one[mask], low=low)
        yield Operator("masked_select", "tm", (rows, more > 0), _told, low=low)
        yield Operator(
            "nonzero",
            "tm",
            (rows > 0,),
            lambda one: [
                place
                for row, each in enumerate(one.tolist())
                for column, told in enumerate(each)
                if told
                for place in (row, column)
            ],
            slope=False,
            low=False,
        )
        yield Operator("embedding", "f", (picks, rows), lambda at, one: _rows_at(one, at), low=low, batch=(0,))
        starts = torch.tensor([0, 2, 3])
        for mode, fold in (("sum", math.fsum), ("mean", lambda each: math.fsum(each) / len(each)), ("max", max)):
            yield Operator(
                "embedding_bag",
                "f",
                (picks, rows, starts),
                lambda at, one, starts, mode, fold=fold: [
                    fold(each) for bag in ([3, 0], [3], [4, 1, 3]) for each in zip(*map(one.tolist().__getitem__, bag))
                ],
                {"mode": mode},
                low=low,
            )
    yield Operator(
        "one_hot",
        "f",
        (torch.tensor([2, 0, 3]), 5),
        lambda at, count: [float(pick == place) for pick in at.tolist() for place in range(count)],
        slope=False,
        low=False,
        batch=(0,),
    )


def _of_shapes() -> Iterator[Operator]:
    rows, more = distinct(FEW, DOZEN), distinct(FEW, DOZEN, seed=43)
    square = [(row, column) for row in range(FEW) for column in range(DOZEN)]
    for name, homes, options, source in (
        ("flip", "tm", {"dims": (1,)}, lambda row, column: (row, DOZEN - 1 - column)),
        ("roll", "tm", {"shifts": 5, "dims": 1}, lambda row, column: (row, (column - 5) % DOZEN)),
    ):
        yield Operator(
            name,
            homes,
            (rows,),
            lambda one, source=source, **_options: [one.tolist()[at[0]][at[1]] for at in itertools.starmap(source, square)],
            options,
            batch=(0,),
        )
    yield Operator(
        "tril", "tm", (rows, 2), lambda one, off: [one.tolist()[row][column] * (column <= row + off) for row, column in square]
    )
    yield Operator(
        "triu", "tm", (rows, 2), lambda one, off: [one.tolist()[row][column] * (column >= row + off) for row, column in square]
    )
    yield Operator("diagonal", "tm", (rows,), lambda one: [one.tolist()[place][place] for place in range(FEW)])
    yield Operator(
        "repeat_interleave",
        "tm",
        (rows, 2, 0),
        lambda one, times, dim: [value for row in one.tolist() for _ in range(2) for value in row],
    )
    counts = torch.arange(FEW) % 3
    yield Operator(
        "repeat_interleave",
        "tm",
        (rows, counts, 0),
        lambda one, times, dim: [
            value for row, count in zip(one.tolist(), times.tolist()) for _ in range(count) for value in row
        ],
    )
    for name, way, work in (
        ("cat", lambda one, other: torch.cat((one, other), 1), lambda one, other: [value for pair in zip(one.tolist(), other.tolist()) for each in pair for value in each]),
        ("stack", lambda one, other: torch.stack((one, other), 1), lambda one, other: [value for pair in zip(one.tolist(), other.tolist()) for each in pair for value in each]),
        ("split and chunk", lambda one, other: torch.cat((*one.split(5, 1)[::-1], *other.chunk(3, 1)[::-1]), 1), lambda one, other: [value for left, right in zip(one.tolist(), other.tolist()) for value in left[10:] + left[5:10] + left[:5] + right[8:] + right[4:8] + right[:4]]),
        ("permute", lambda one, other: torch.stack((one, other)).permute(2, 0, 1).contiguous(), lambda one, other: [each[row][column] for column in range(DOZEN) for each in (one.tolist(), other.tolist()) for row in range(FEW)]),
    ):  # fmt: skip
        yield Operator(name, "", (rows, more), work, way=way, batch=() if name == "permute" else (0, 1))
    yield Operator(
        "pad",
        "f",
        (rows, (2, 1)),
        lambda one, _sides: [value for row in one.tolist() for value in [0.0, 0.0, *row, 0.0]],
        batch=(0,),
    )
    yield Operator(
        "pad",
        "f",
        (rows, (2, 1)),
        lambda one, _sides, mode: [value for row in one.tolist() for value in [row[2], row[1], *row, row[-2]]],
        {"mode": "reflect"},
        low=False,
        batch=(0,),
    )
    yield Operator(
        "unfold",
        "m",
        (rows, 1, 4, 3),
        lambda one, dim, size, step: [
            row[start + place] for row in one.tolist() for start in range(0, 9, 3) for place in range(4)
        ],
        batch=(0,),
    )
