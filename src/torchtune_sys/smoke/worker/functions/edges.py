"""What kernels do otherwise at some sizes, addresses and strides alone: whole blocks, no numbers at all, odd addresses, one matrix for many; and memory that is to be ignored."""

from __future__ import annotations

import math
from typing import Iterator, List, Tuple

import torch
from torch.nn import functional

from torchtune_sys.smoke.worker.context import RankContext, small_integers, torch_has_reached
from torchtune_sys.smoke.worker.functions.wide_ranges import is_the_same

_BLOCKS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Numbers in a row: what is read at once, and what a block of threads takes, is a power of two."""
_WIDTHS_OF_HEADS = (8, 16, 32, 64, 80, 96, 128, 256)
_Edge = Tuple[str, torch.Tensor, torch.Tensor]


def edges_are_right(here: RankContext) -> None:
    """Raise StageFailed for the first result that is wrong. All have one right answer."""
    for part, cause in (
        (_of_whole_blocks, "device-computes-wrong"),
        (_over_no_numbers, "device-computes-wrong"),
        (_of_what_is_ignored, "device-computes-wrong"),
        (_of_one_for_many, "device-computes-wrong"),
        (_of_heads, "layer-wrong"),
        (_at_odd_addresses, "gemm-wrong"),
    ):
        for name, found, wanted in part(here):
            is_the_same(name, found, wanted, cause)


def _of_whole_blocks(here: RankContext) -> Iterator[_Edge]:
    """Yield sums and places of rows whose last number counts: that of a tail, where there is none."""
    for count in _BLOCKS:
        row = [(place * 7 + 1) % 3 - 1 for place in range(count - 1)] + [2]
        rows = torch.tensor([row, row[::-1]])
        ends = torch.tensor([count - 1, 0])
        for kind in (torch.float32, torch.bfloat16):
            for dim in (1, 0):
                given = (rows if dim else rows.t().contiguous()).to(here.device, kind)
                name = "of %d %s along dimension %d" % (count, str(kind)[6:], dim)
                yield "sum %s" % name, given.sum(dim), torch.tensor([sum(row)] * 2)
                yield "the largest %s" % name, given.amax(dim), torch.tensor([2, 2])
                yield "the place of the largest %s" % name, given.argmax(dim), ends
                yield (
                    "softmax of zeros, %d of them along dimension %d" % (count, dim),
                    (given * 0).softmax(dim) * count,
                    (torch.ones(given.shape)),
                )


def _over_no_numbers(here: RankContext) -> Iterator[_Edge]:
    """Yield products over no numbers, as of an expert without tokens, beside memory that was written before."""
    left, right, bias = (torch.zeros(shape, device=here.device) for shape in ((3, 0), (0, 5), (5,)))
    bias = bias + 2
    torch.full((3, 5), 0.25, device=here.device)  # is let go at once: what is new may lie there
    yield "a product over no numbers", left @ right, torch.zeros(3, 5)
    yield "products over no numbers (bmm)", torch.bmm(left.expand(2, 3, 0), right.expand(2, 0, 5)), torch.zeros(2, 3, 5)
    yield "a product over no numbers and a sum (addmm)", torch.addmm(bias, left, right), torch.full((3, 5), 2.0)
    yield "a linear layer of no inputs", functional.linear(left, right.t(), bias), torch.full((3, 5), 2.0)
    yield "a linear layer for no samples", functional.linear(right, torch.ones(2, 5, device=here.device)), torch.zeros(0, 2)
    yield "a sum of no numbers", left.sum(1), torch.zeros(3)
    yield "a product of no numbers (prod)", left.prod(1), torch.ones(3)


def _of_what_is_ignored(here: RankContext) -> Iterator[_Edge]:
    """Yield what memory holds that is no number has no part in (torch.addmm: with beta=0 the input is ignored, also what is nan and inf there)."""
    one, other = (small_integers(shape, seed).to(here.device) for shape, seed in (((6, 4), 61), ((4, 7), 62)))
    wanted = (one.cpu().double() @ other.cpu().double()).float()
    for kind in (torch.float32, torch.float64):
        first, second, name = one.to(kind), other.to(kind), str(kind)[6:]
        nothing = torch.full((6, 7), math.nan, device=here.device, dtype=kind)
        yield "addmm of %s with beta=0" % name, torch.addmm(nothing, first, second, beta=0), wanted
        if torch_has_reached(2, 1):  # before, small ones multiply what is there (https://github.com/pytorch/pytorch/issues/96037)
            yield "baddbmm of %s with beta=0" % name, torch.baddbmm(nothing[None], first[None], second[None], beta=0)[0], wanted
        yield "addbmm of %s with beta=0" % name, torch.addbmm(nothing, first[None], second[None], beta=0), wanted
        yield "addmv of %s with beta=0" % name, torch.addmv(nothing[:, 0], first, second[:, 0], beta=0), wanted[:, 0]
        yield "mm of %s into what is no number" % name, torch.mm(first, second, out=nothing.clone()), wanted
        yield "addmm_ of %s with beta=0" % name, nothing.clone().addmm_(first, second, beta=0), wanted


def _of_one_for_many(here: RankContext) -> Iterator[_Edge]:
    """Yield products in which one matrix stands for all of a batch: its stride there is 0."""
    many, one = (small_integers(shape, seed).to(here.device) for shape, seed in (((5, 6, 4), 63), ((4, 7), 64)))
    wanted = torch.stack([each @ one.cpu().double() for each in many.cpu().double()]).float()
    yield "bmm with one second factor for all", torch.bmm(many, one.expand(5, 4, 7)), wanted
    yield "baddbmm with one second factor for all", torch.baddbmm(many.new_zeros(()), many, one.expand(5, 4, 7)), wanted
    yield "matmul with one second factor for all", torch.matmul(many[:, None], one.expand(5, 1, 4, 7))[:, 0], wanted
    yield "bmm with one first factor for all", torch.bmm(one.t().expand(5, 7, 4), many.transpose(1, 2)), wanted.transpose(1, 2)
    yield "a sum of what is expanded", one.expand(5, 4, 7).sum(0), one.cpu() * 5


def _of_heads(here: RankContext) -> Iterator[_Edge]:
    """Yield attention that heeds all of four places alike: the mean of what is there."""
    for width in _WIDTHS_OF_HEADS:
        alike, value = torch.zeros(1, 2, 4, width, device=here.device), small_integers((1, 2, 4, width), 65)
        found = functional.scaled_dot_product_attention(alike, alike, value.to(here.device))
        yield "attention with heads of %d" % width, (found * 4).round(), value.sum(2, keepdim=True).expand(1, 2, 4, width)


def _at_odd_addresses(here: RankContext) -> Iterator[_Edge]:
    """Yield products of factors that begin wherever a file had them, as what is mapped does."""
    rows, terms, columns = 17, 24, 19
    one, other = small_integers((rows, terms), 66, -1, 2), small_integers((terms, columns), 67, -1, 2)
    wanted = (one.double() @ other.double()).float()
    for kind in (torch.float32, torch.float64, *[torch.bfloat16] * here.has_bfloat16()):
        for place in (1, 3):
            factors: List[torch.Tensor] = []
            for factor in (one, other):
                room = torch.zeros(factor.numel() + 8, device=here.device, dtype=kind)
                factors.append(room[place : place + factor.numel()].view(factor.shape).copy_(factor))
            name = "of %s that begins %d numbers off" % (str(kind)[6:], place)
            yield "a product %s" % name, torch.mm(*factors), wanted
            yield "a linear layer %s" % name, functional.linear(factors[0], factors[1].t()), wanted
