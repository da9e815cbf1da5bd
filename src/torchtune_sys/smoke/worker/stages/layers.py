"""The layers that models are made of, beside their formulas in float64, written out with nothing but sums, products and exponentials."""

from __future__ import annotations

import functools
import re
from typing import Any, Dict, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed, seldom_used_is_right, small_integers
from torchtune_sys.smoke.worker.functions.combined import combined_steps_are_right
from torchtune_sys.smoke.worker.functions.edges import edges_are_right
from torchtune_sys.smoke.worker.functions.inputs import normalised
from torchtune_sys.smoke.worker.functions.known_answers import answers_are_known
from torchtune_sys.smoke.worker.functions.models import functions_of_models
from torchtune_sys.smoke.worker.functions.numbers import operators_of_numbers
from torchtune_sys.smoke.worker.functions.other_ways import far_from_zero, many_in_low_precision, other_ways_agree
from torchtune_sys.smoke.worker.functions.places import operators_of_places
from torchtune_sys.smoke.worker.functions.products import convolutions, functions_of_pictures, products, products_of_a_row
from torchtune_sys.smoke.worker.functions.rows import operators_of_rows
from torchtune_sys.smoke.worker.functions.seldom_called import seldom_calls_are_right
from torchtune_sys.smoke.worker.functions.sequences import autograd_keeps_its_promises, sequences_are_right
from torchtune_sys.smoke.worker.functions.table_of_operators import table_is_right
from torchtune_sys.smoke.worker.functions.transforms import transforms_are_right
from torchtune_sys.smoke.worker.functions.tried import SUMS_PASSED, judged_where_tried
from torchtune_sys.smoke.worker.functions.wide_ranges import wide_ranges_are_right
from torchtune_sys.smoke.worker.stages.operations import operations_are_right

_OFF = 2.0**-13
"""Rounding of float32 in sums of some ten terms is below 2**-18 here. What is to be caught (another epsilon, the approximation of an
activation function, a term that is left out) moves a result by 2.6e-4 or more."""
_DROPPED = 1 << 14


def layers_follow_their_formulas(here: RankContext) -> None:
    """Check operations, layers, activations, attention, dropout, losses and their gradients against their formulas."""
    for check in (
        edges_are_right,
        wide_ranges_are_right,
        operations_are_right,
        _batch_norm,
        _dropout,
        _tables,
        sequences_are_right,
        autograd_keeps_its_promises,
        combined_steps_are_right,
        transforms_are_right,
    ):
        check(here)
    if here.level == QUICK:  # what few trainings use takes as long again
        return
    answers_are_known(here)
    if seldom_used_is_right():  # last: by then it is known what is wrong by a formula
        for check in (seldom_calls_are_right, far_from_zero):
            judged_where_tried(check, here, rounding=False)
        judged_where_tried(other_ways_agree, here)
        judged_where_tried(many_in_low_precision, here, releases=SUMS_PASSED)


def _tables(here: RankContext) -> None:
    """Try all operators, each kind with the cause that stands for it."""
    for rows, cause in (
        (operators_of_numbers, "device-computes-wrong"),
        (operators_of_rows, "device-computes-wrong"),
        (operators_of_places, "device-computes-wrong"),
        (products, "gemm-wrong"),
        (products_of_a_row, "gemm-wrong"),
        (convolutions, "convolution-wrong"),
        (functions_of_pictures, "layer-wrong"),
        (functions_of_models, "layer-wrong"),
    ):
        table_is_right(here, rows(), cause)


def _points_of(shape: Tuple[int, ...], seed: int) -> torch.Tensor:
    """Quarters between -2 and 2, none of them 0, where ReLU has no gradient."""
    return (small_integers(shape, seed, -8, 8) + 0.5) / 4


def _close(what: str, found: torch.Tensor, wanted: torch.Tensor, bound: float = _OFF, cause: str = "layer-wrong") -> None:
    off = float((found.detach().cpu().double() - wanted.detach()).abs().max())
    if not off <= bound * max(1.0, float(wanted.abs().max())):
        raise StageFailed(cause, "%s is off by %.3g from its formula in float64 (rounding: at most %.3g)" % (what, off, bound))


def _batch_norm(here: RankContext) -> None:
    layer = nn.BatchNorm1d(5, momentum=0.25).to(here.device)
    inputs = _points_of((8, 5), 78) * 3 + 1
    wide = inputs.double()
    _close("nn.BatchNorm1d", layer(inputs.to(here.device)), normalised(wide, 0))
    mean, variance = 0.25 * wide.mean(0), 0.75 + 0.25 * wide.var(0, unbiased=True)
    if bool((layer.running_mean == 0).all()):
        raise StageFailed("batchnorm-stuck", "nn.BatchNorm1d does not update its running mean")
    if bool((layer.running_var == 1).all()):
        raise StageFailed("batchnorm-stuck", "nn.BatchNorm1d does not update its running variance")
    _close("the running mean of nn.BatchNorm1d", layer.running_mean, mean)
    _close("the running variance of nn.BatchNorm1d", layer.running_var, variance)
    layer.eval()
    _close("nn.BatchNorm1d in eval", layer(inputs.to(here.device)), (wide - mean) / (variance + 1e-5).sqrt())


def _dropout(here: RankContext) -> None:
    """Check dropout: what stays is scaled by 1/(1-p), what is dropped varies, and a gradient goes the way its value went."""
    for share in (0.5, 0.1, 0.75):
        _drops(here, share)
    pictures = nn.Dropout2d(0.5)(torch.ones(64, 64, 3, 3, device=here.device)).cpu()
    if (
        not torch.equal(pictures, pictures[:, :, :1, :1].expand_as(pictures))
        or not 0.4 < float((pictures == 0).double().mean()) < 0.6
    ):
        raise StageFailed(
            "layer-wrong", "dropout of channels (nn.Dropout2d, p 0.5) does not drop half of the channels, each as a whole"
        )


def _drops(here: RankContext, share: float) -> None:
    layer, kept = nn.Dropout(share), torch.tensor(1 / (1 - share))
    held = torch.ones(_DROPPED, device=here.device, requires_grad=True)
    masks: List[torch.Tensor] = []
    for _ in range(2):
        held.grad = None
        output = layer(held)
        output.sum().backward()
        values = output.detach().cpu()
        others = int(((values != 0) & ((values - kept).abs() > 1e-6)).sum())
        if others:
            seen = "dropout (p %g) of ones gives %d values that are neither 0 nor %.4g"
            raise StageFailed("layer-wrong", seen % (share, others, float(kept)))
        if not torch.equal(values, held.grad.cpu()):
            raise StageFailed("layer-wrong", "the gradient of dropout does not go the way of its values")
        masks.append(values)
    dropped = float((masks[0] == 0).double().mean())
    if not abs(dropped - share) <= 0.03:  # 2**14 draws: 0.03 are more than seven standard deviations
        raise StageFailed("layer-wrong", "dropout (p %g) drops %.1f %%" % (share, 100 * dropped))
    if torch.equal(*masks):
        raise StageFailed("layer-wrong", "dropout drops the same elements each time")
    if not torch.equal(layer.eval()(held), held):
        raise StageFailed("layer-wrong", "dropout in eval changes its input")


_COMPUTED_OTHERWISE = re.compile(r"torch\.utils\.checkpoint|same dtype|shapes cannot be multiplied")
"""What a layer, or checkpoint itself (CheckpointError), says to other types or sizes than those of the way there."""


def recomputed_is_the_same(here: RankContext) -> None:
    """Check that activation checkpointing does not change a bit of loss and gradients, with dropout and autocast too."""
    from torch.utils import checkpoint

    found: Dict[str, List[torch.Tensor]] = {}
    keeping: Dict[str, Any] = {}
    if hasattr(checkpoint, "create_selective_checkpoint_contexts"):  # torch 2.4
        kept = functools.partial(checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
        keeping = {"use_reentrant=False, products are kept": {"context_fn": kept}}
    for way in ("", "use_reentrant=False", "use_reentrant=True", *keeping):
        torch.manual_seed(8)
        parts = [nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Dropout(0.5), nn.Linear(48, 24)) for _ in range(2)]
        layers = nn.Sequential(*parts).to(here.device)  # one part twice would add its gradients in another precision
        inputs = _points_of((16, 24), 86).to(here.device).requires_grad_()
        low = torch.bfloat16 if here.has_bfloat16() else torch.float16
        try:
            with torch.autocast(here.kind, dtype=low, enabled=here.kind == "cuda" or low == torch.bfloat16):
                output = inputs
                for part in parts:
                    output = (
                        checkpoint.checkpoint(part, output, use_reentrant=way.endswith("True"), **keeping.get(way, {}))
                        if way
                        else part(output)
                    )
            loss = output.float().square().mean()
            loss.backward()
        except RuntimeError as error:  # a CheckpointError since torch 2.1
            if not way or not _COMPUTED_OTHERWISE.search(str(error)):
                raise
            seen = "activation checkpointing (%s): what it computes again is not what was there before: %s"
            raise StageFailed("recompute-differs", seen % (way, " ".join(str(error).split("\n")[:2])[:300])) from error
        found[way] = [loss.detach(), inputs.grad, *(value.grad for value in layers.parameters())]
        differing = sum(not torch.equal(one, other) for one, other in zip(found[""], found[way]))
        if differing:
            seen = "with activation checkpointing (%s) %d of %d of the loss and the gradients are others than without"
            raise StageFailed("recompute-differs", seen % (way, differing, len(found[way])))
