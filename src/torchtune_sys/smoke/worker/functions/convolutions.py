"""Convolutions of small integers beside sums in float64: plain, transposed, in groups and of places that lie apart."""

from __future__ import annotations

from typing import List, Tuple

import torch
import torch.nn.functional as functional

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, small_integers

_PLAIN = torch.contiguous_format
_Gradients = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def convolution_is_right(here: RankContext, dtype: torch.dtype, stride: int, tolerance: float) -> None:
    """Of so many terms that each sum is exact; raise StageFailed where the output or a gradient is off by more than ``tolerance``."""
    side = 16 // (3 - stride)  # 72 terms in an output, at most 2 * 8 * 8 in a gradient of the weight, 72 in one of the input
    pictures = small_integers((2, 8, side, side), 3, -1, 2)
    weight, bias = small_integers((8, 8, 3, 3), 4, -1, 2), small_integers((8,), 5, -1, 2)
    upstream = small_integers((2, 8, 8, 8), 6, -1, 2)
    wanted = _by_unfolding(pictures, weight, bias, upstream, stride)
    for layout in (_PLAIN, torch.channels_last):
        held: List[torch.Tensor] = [
            tensor.to(here.device, dtype, copy=True).contiguous(memory_format=layout if tensor.dim() == 4 else _PLAIN)
            for tensor in (pictures, weight, bias)
        ]
        for tensor in held:
            tensor.requires_grad_()
        output = functional.conv2d(held[0], held[1], held[2], stride=stride, padding=1)
        output.backward(upstream.to(here.device, dtype))
        found = (output, held[0].grad, held[1].grad, held[2].grad)
        for name, seen, right in zip(
            ("output", "gradient of the input", "gradient of the weight", "gradient of the bias"), found, wanted
        ):
            away = float((seen.detach().to("cpu", torch.float64) - right).abs().max().item())
            if not away <= tolerance:
                raise StageFailed(
                    "convolution-wrong",
                    "the %s of a %s convolution (stride %d) is off by %g, where at most %g is due to rounding"
                    % (name, str(dtype)[6:], stride, away, tolerance),
                )


def transposed_convolution_is_right(here: RankContext, dtype: torch.dtype, tolerance: float) -> None:
    """Of the same integers, of which an output adds at most 72; it is what a convolution's input gets as its gradient."""
    pictures, weight = small_integers((2, 8, 8, 8), 7, -1, 2), small_integers((8, 8, 3, 3), 8, -1, 2)
    columns = weight.double().flatten(1).t() @ pictures.double().flatten(2)
    wanted = functional.fold(columns, (15, 15), 3, padding=1, stride=2)
    for layout in (_PLAIN, torch.channels_last):
        one, other = (tensor.to(here.device, dtype).contiguous(memory_format=layout) for tensor in (pictures, weight))
        output = functional.conv_transpose2d(one, other, stride=2, padding=1)
        away = float((output.to("cpu", torch.float64) - wanted).abs().max().item())
        if not away <= tolerance:
            seen = "the output of a transposed %s convolution is off by %g, where at most %g is due to rounding"
            raise StageFailed("convolution-wrong", seen % (str(dtype)[6:], away, tolerance))


def convolution_of_parts_is_right(here: RankContext, dtype: torch.dtype, groups: int, dilation: int) -> None:
    """In groups, each with its own weights (in eight: one for each channel), and of places that lie apart: other kernels than the rest. Integers as above."""
    pictures, upstream = small_integers((2, 8, 9, 9), 9, -1, 2), small_integers((2, 8, 9, 9), 10, -1, 2)
    weight = small_integers((8, 8 // groups, 3, 3), 11, -1, 2)
    wide, narrow = pictures.double().requires_grad_(), weight.double().requires_grad_()
    columns = functional.unfold(wide, 3, padding=dilation, dilation=dilation).view(2, groups, -1, 81)
    wanted = (narrow.view(groups, 8 // groups, -1) @ columns).view(upstream.shape)
    wanted.backward(upstream.double())
    for layout in (_PLAIN, torch.channels_last):
        held = [tensor.to(here.device, dtype, copy=True).contiguous(memory_format=layout) for tensor in (pictures, weight)]
        for tensor in held:
            tensor.requires_grad_()
        output = functional.conv2d(held[0], held[1], padding=dilation, dilation=dilation, groups=groups)
        output.backward(upstream.to(here.device, dtype))
        for name, seen, right in (
            ("output", output, wanted),
            ("gradient of the input", held[0].grad, wide.grad),
            ("gradient of the weight", held[1].grad, narrow.grad),
        ):
            away = float((seen.detach().to("cpu", torch.float64) - right.detach()).abs().max().item())
            if not away <= 2.0**-1:  # transforming algorithms round, see above
                words = (name, str(dtype)[6:], groups, dilation, away)
                raise StageFailed(
                    "convolution-wrong", "the %s of a %s convolution in %d group(s), dilation %d, is off by %g" % words
                )


def _by_unfolding(
    pictures: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, upstream: torch.Tensor, stride: int
) -> _Gradients:
    """Compute the same as matrix products in float64 on the CPU: neither cuDNN nor oneDNN takes part."""
    wide, narrow = pictures.double(), weight.double().flatten(1)
    columns = functional.unfold(wide, 3, padding=1, stride=stride)
    output = (narrow @ columns + bias.double()[:, None]).view(upstream.shape)
    flat = upstream.double().flatten(2)
    to_input = functional.fold(narrow.t() @ flat, pictures.shape[2:], 3, padding=1, stride=stride)
    to_weight = (flat @ columns.transpose(1, 2)).sum(0).view(weight.shape)
    return output, to_input, to_weight, flat.sum((0, 2))
