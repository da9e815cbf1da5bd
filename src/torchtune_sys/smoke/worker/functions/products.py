"""Products, transforms, convolutions and what stands between them, beside sums of products in float64."""

from __future__ import annotations

import math
from typing import Iterator, Tuple

import torch
import torch.nn.functional as functional

from torchtune_sys.smoke.worker.functions.inputs import distinct
from torchtune_sys.smoke.worker.functions.operators import Operator

_NARROW, _WIDE_ROW = 48, 521
"""What is added up, and how many results: no multiple of any block of a kernel."""


def products() -> Iterator[Operator]:
    """Yield products of matrices and vectors."""
    left, right, more = distinct(5, 8), distinct(8, 6, seed=41), distinct(5, 6, seed=43)
    batch, other = distinct(2, 3, 8), distinct(2, 8, 4, seed=41)

    def product(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return (one[..., :, :, None] * two[..., None, :, :]).sum(-2)

    yield Operator("mm", "tm", (left, right), product, batch=(0,))
    yield Operator("matmul", "tmo", (left, right), product, batch=(0,))
    yield Operator("matmul", "tmo", (batch, other), product, batch=(0, 1))
    yield Operator("bmm", "tm", (batch, other), product, batch=(0, 1))
    yield Operator("addmm", "t", (more, left, right), lambda bias, one, two: bias + product(one, two), batch=(0, 1))
    yield Operator(
        "baddbmm",
        "t",
        (distinct(2, 3, 4, seed=43), batch, other),
        lambda bias, one, two: bias + product(one, two),
        batch=(0, 1, 2),
    )
    yield Operator(
        "einsum", "", (batch, other), product, way=lambda one, two: torch.einsum("bij,bjk->bik", one, two), batch=(0, 1)
    )
    yield Operator(
        "einsum",
        "",
        (left, right),
        lambda one, two: product(one, two).sum(0),
        way=lambda one, two: torch.einsum("ij,jk->k", one, two),
    )
    yield Operator(
        "tensordot",
        "",
        (batch, other),
        lambda one, two: product(one.permute(1, 0, 2).reshape(3, 16), two.reshape(16, 4)),
        way=lambda one, two: torch.tensordot(one, two, dims=([0, 2], [0, 1])),
    )
    yield Operator("mv", "tm", (left, distinct(8, seed=5)), lambda one, two: (one * two).sum(1), batch=(0,))
    yield Operator("dot", "tm", (distinct(60), distinct(60, seed=43)), lambda one, two: [float((one * two).sum())])
    yield Operator("outer", "tm", (distinct(5), distinct(6)), lambda one, two: one[:, None] * two, batch=(0,))
    yield Operator(
        "linear",
        "f",
        (left, distinct(6, 8, seed=41), distinct(6)),
        lambda one, weight, bias: product(one, weight.t()) + bias,
        batch=(0,),
    )
    yield Operator(
        "bilinear",
        "f",
        (distinct(3, 4), distinct(3, 5, seed=41), distinct(2, 4, 5, seed=43)),
        lambda one, two, weight: (one[:, None, :, None] * weight[None] * two[:, None, None, :]).sum((2, 3)),
        batch=(0, 1),
    )
    yield Operator(
        "cdist", "t", (left, distinct(4, 8, seed=41)), lambda one, two: ((one[:, None] - two[None]) ** 2).sum(2) ** 0.5, low=False
    )
    yield Operator(
        "cosine_similarity",
        "f",
        (left, distinct(5, 8, seed=41)),
        lambda one, two: (one * two).sum(1) / ((one**2).sum(1) * (two**2).sum(1)) ** 0.5,
        batch=(0, 1),
    )


def products_of_a_row() -> Iterator[Operator]:
    """Yield products with one row or one column, as a model that answers word by word has them: libraries take other ways with these."""
    row, wide, column = distinct(1, _NARROW), distinct(_NARROW, _WIDE_ROW, seed=41), distinct(_NARROW, 1, seed=43)

    def product(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return (one[..., :, :, None] * two[..., None, :, :]).sum(-2)

    for name, homes in (("mm", "tm"), ("matmul", "tmo")):
        yield Operator(name, homes, (row, wide), product, low=False)
        yield Operator(name, homes, (wide.t(), column), product, low=False)
    yield Operator("bmm", "tm", (row[None], wide[None]), product, low=False)
    yield Operator("addmm", "t", (distinct(_WIDE_ROW), row, wide), lambda bias, one, two: bias + product(one, two), low=False)
    yield Operator("mv", "tm", (wide.t(), column[:, 0]), lambda one, two: (one * two).sum(1), low=False)
    yield Operator(
        "linear",
        "f",
        (row, wide.t(), distinct(_WIDE_ROW)),
        lambda one, weight, bias: product(one, weight.t()) + bias,
        low=False,
    )


def functions_of_pictures() -> Iterator[Operator]:
    """Yield what changes numbers into as many others, and pictures."""
    for part in (_transforms, _pools, _sizes_of_pictures):
        yield from part()


def _transforms() -> Iterator[Operator]:
    """Solvers by what they must satisfy, Fourier transforms by their sums."""
    steady = distinct(4, 4) + 4 * torch.eye(4, dtype=torch.float64)
    both = steady + steady.t()
    for name, given, way, wanted in (
        ("linalg.solve", steady, lambda one: one @ torch.linalg.solve(one, one.new_ones(4, 2)), torch.ones(4, 2)),
        ("linalg.inv", steady, lambda one: one @ torch.linalg.inv(one), torch.eye(4)),
        ("linalg.cholesky", both, lambda one: torch.linalg.cholesky(one) @ torch.linalg.cholesky(one).t(), both),
        ("linalg.qr", steady, lambda one: torch.mm(*torch.linalg.qr(one)), steady),
        ("linalg.svd", steady, _of_singular_values, steady),
        ("linalg.eigh", both, _of_eigenvalues, both),
    ):
        yield Operator(name, "", (given,), lambda one, wanted=wanted: wanted, way=way, slope=False, low=False)
    rows = distinct(3, 16)
    turns = (torch.arange(9)[:, None] * torch.arange(16)[None]).double() * (2 * math.pi / 16)
    waves = torch.tensor([[[math.cos(turn), -math.sin(turn)] for turn in row] for row in turns.tolist()], dtype=torch.float64)

    def transformed(one: torch.Tensor) -> torch.Tensor:
        return (one[:, None, :, None] * waves).sum(2)

    yield Operator(
        "fft.rfft", "", (rows,), transformed, way=lambda one: torch.view_as_real(torch.fft.rfft(one)), low=False, batch=(0,)
    )
    yield Operator(
        "fft.irfft",
        "",
        (rows,),
        lambda one: one,
        way=lambda one: torch.fft.irfft(torch.fft.rfft(one), n=16),
        low=False,
        batch=(0,),
    )


def _of_singular_values(one: torch.Tensor) -> torch.Tensor:
    left, middle, right = torch.linalg.svd(one)
    return left @ torch.diag(middle) @ right


def _of_eigenvalues(one: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(one)
    return vectors @ torch.diag(values) @ vectors.t()


def _windows(given: torch.Tensor, sizes: Tuple[int, ...], stride: int, padding: int, fill: float = 0.0) -> torch.Tensor:
    """Windows of the last dimensions, as dimensions of their own at the end: [batch, channels, places…, window…]."""
    for number, size in enumerate(sizes):
        dim = 2 + number
        shape = list(given.shape)
        shape[dim] = padding
        edge = torch.full(shape, fill, dtype=given.dtype)
        padded = torch.cat((edge, given, edge), dim)
        places = range(0, padded.shape[dim] - size + 1, stride)
        given = torch.stack([padded.narrow(dim, place, size).movedim(dim, -1) for place in places], dim)
    return given


def convolutions() -> Iterator[Operator]:
    """Yield convolutions of one, two and three dimensions."""
    for dims in (1, 2, 3):
        side = {1: (11,), 2: (6, 5), 3: (4, 4, 3)}[dims]
        given, bias = distinct(2, 3, *side, seed=41), distinct(4)
        weight = distinct(4, 3, *(3,) * dims, seed=101, wide=1.0)
        for stride, padding in ((1, 1), (2, 0)):

            def formula(
                one: torch.Tensor, by: torch.Tensor, plus: torch.Tensor, stride: int, padding: int, dims: int = dims
            ) -> torch.Tensor:
                views = _windows(one, tuple(by.shape[2:]), stride, padding)
                places = views.shape[2 : 2 + dims]
                flat = views.movedim(1, 1 + dims).reshape(2, math.prod(places), -1)
                found = (flat[:, :, None] * by.reshape(4, -1)).sum(3) + plus
                return found.movedim(2, 1).reshape(2, 4, *places)

            if stride == 2 and min(side) < 3:
                continue
            yield Operator(
                "conv%dd" % dims, "tf", (given, weight, bias), formula, {"stride": stride, "padding": padding}, batch=(0,)
            )
            if dims == 2 and stride == 2:  # as the first layer of many models has it
                pictures, first = distinct(2, 3, 18, 17, seed=41), distinct(4, 3, 7, 7, seed=101, wide=1.0)
                options = {"stride": 2, "padding": 3}
                yield Operator("conv2d", "tf", (pictures, first, bias), formula, options, low=False)


def _pools() -> Iterator[Operator]:
    for dims in (1, 2, 3):
        side = {1: (12,), 2: (6, 7), 3: (4, 5, 4)}[dims]
        given, over = distinct(2, 3, *side, seed=41), tuple(range(-dims, 0))
        low = given.numel() <= 128

        def most(
            one: torch.Tensor, size: int, stride: int, padding: int, over: Tuple[int, ...] = over, dims: int = dims
        ) -> torch.Tensor:
            return _windows(one, (size,) * dims, stride, padding, -1e9).amax(over)

        def mean(
            one: torch.Tensor, size: int, stride: int, padding: int, over: Tuple[int, ...] = over, dims: int = dims
        ) -> torch.Tensor:
            return _windows(one, (size,) * dims, stride, padding).mean(over)

        for size, stride, padding in ((2, 2, 0), (3, 2, 1)):
            yield Operator("max_pool%dd" % dims, "f", (given, size, stride, padding), most, low=low, batch=(0,))
            yield Operator("avg_pool%dd" % dims, "f", (given, size, stride, padding), mean, low=low, batch=(0,))
        yield Operator(
            "adaptive_avg_pool%dd" % dims, "f", (given, 1), lambda one, size, over=over: one.mean(over), low=low, batch=(0,)
        )
        yield Operator(
            "adaptive_max_pool%dd" % dims, "f", (given, 1), lambda one, size, over=over: one.amax(over), low=low, batch=(0,)
        )
    places = distinct(2, 3, 6, 6, seed=41)
    yield Operator(
        "the places of max_pool2d",
        "",
        (places,),
        lambda one: one.view(6, 3, 2, 3, 2).permute(0, 1, 3, 2, 4).reshape(6, 9, 4).amax(2),
        way=lambda one: one.flatten(2).gather(2, functional.max_pool2d(one, 2, return_indices=True)[1].flatten(2)),
        slope=False,
    )


def _between(size: int, wanted: int, corners: bool) -> torch.Tensor:
    """Return the shares of the given places in each wanted one, along a line (https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html)."""
    found = torch.zeros(wanted, size, dtype=torch.float64)
    for place in range(wanted):
        at = place * (size - 1) / (wanted - 1) if corners else max((place + 0.5) * size / wanted - 0.5, 0.0)
        low = min(int(at), size - 1)
        found[place, low] += 1 - (at - low)
        found[place, min(low + 1, size - 1)] += at - low
    return found


def _sizes_of_pictures() -> Iterator[Operator]:
    given = distinct(2, 2, 4, 5, seed=41)
    for corners in (False, True):
        rows, columns = _between(4, 7, corners), _between(5, 8, corners)
        yield Operator(
            "interpolate",
            "f",
            (given,),
            lambda one, rows=rows, columns=columns, **_options: torch.einsum("bcij,pi,qj->bcpq", one, rows, columns),
            {"size": (7, 8), "mode": "bilinear", "align_corners": corners},
            batch=(0,),
        )
    line = _between(5, 9, False)
    yield Operator(
        "interpolate",
        "f",
        (given[0],),
        lambda one, **_options: torch.einsum("cij,qj->ciq", one, line),
        {"size": 9, "mode": "linear"},
        batch=(0,),
    )
    yield Operator(
        "interpolate",
        "f",
        (given,),
        lambda one, scale_factor: one.repeat_interleave(2, 2).repeat_interleave(2, 3),
        {"scale_factor": 2},
        batch=(0,),
    )
    yield Operator(
        "pixel_shuffle",
        "f",
        (distinct(1, 4, 3, 2), 2),
        lambda one, times: one.view(1, 1, 2, 2, 3, 2).permute(0, 1, 4, 2, 5, 3).reshape(1, 1, 6, 4),
        batch=(0,),
    )
    yield Operator(
        "grid_sample",
        "",
        (given,),
        lambda one: one.flip(3),
        way=lambda one: functional.grid_sample(
            one,
            functional.affine_grid(
                one.new_tensor([[[-1.0, 0, 0], [0, 1, 0]]]).expand(2, 2, 3), [2, 2, 4, 5], align_corners=False
            ),
            align_corners=False,
        ),
        low=False,
    )
    yield Operator(
        "unfold",
        "f",
        (given, 3),
        lambda one, size: _windows(one, (3, 3), 1, 0).permute(0, 1, 4, 5, 2, 3).reshape(2, 18, 6),
        batch=(0,),
    )
    yield Operator(
        "fold", "", (distinct(1, 4, 6, seed=41),), _folded, way=lambda one: functional.fold(one, (4, 6), 2, stride=2), batch=(0,)
    )


def _folded(one: torch.Tensor) -> torch.Tensor:
    return one.view(1, 1, 2, 2, 2, 3).permute(0, 1, 4, 2, 5, 3).reshape(1, 1, 4, 6)
