"""The layers that models are made of, beside their formulas in float64, written out with nothing but sums, products and exponentials."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed, seldom_used_is_right, small_integers
from torchtune_sys.smoke.worker.functions.combined import combined_steps_are_right
from torchtune_sys.smoke.worker.functions.edges import edges_are_right
from torchtune_sys.smoke.worker.functions.inputs import normalised
from torchtune_sys.smoke.worker.functions.known_answers import answers_are_known
from torchtune_sys.smoke.worker.functions.models import functions_of_models
from torchtune_sys.smoke.worker.functions.numbers import operators_of_numbers
from torchtune_sys.smoke.worker.functions.operators import table_is_right
from torchtune_sys.smoke.worker.functions.other_ways import far_from_zero, other_ways_agree
from torchtune_sys.smoke.worker.functions.places import operators_of_places
from torchtune_sys.smoke.worker.functions.products import convolutions, functions_of_pictures, products, products_of_a_row
from torchtune_sys.smoke.worker.functions.rows import operators_of_rows
from torchtune_sys.smoke.worker.functions.seldom_called import seldom_calls_are_right
from torchtune_sys.smoke.worker.functions.sequences import autograd_keeps_its_promises, sequences_are_right
from torchtune_sys.smoke.worker.functions.transforms import transforms_are_right
from torchtune_sys.smoke.worker.functions.tried import judged_where_tried
from torchtune_sys.smoke.worker.functions.wide_ranges import wide_ranges_are_right
from torchtune_sys.smoke.worker.stages.operations import operations_are_right

_OFF = 2.0**-13
"""Rounding of float32 in sums of some ten terms is below 2**-18 here. What is to be caught (another epsilon, the approximation of an
activation function, a term that is left out) moves a result by 2.6e-4 or more."""
_OFF_PRODUCTS = 2.0**-5
"""Where matrix products may take TF32 (11 bits). A place that attention must not see moves a result by a tenth or more."""
_LEVEL_ROW = 5003
_DROPPED = 1 << 14


def layers_follow_their_formulas(here: RankContext) -> None:
    """Check operations, layers, activations, attention, dropout, losses and their gradients against their formulas."""
    for check in (
        edges_are_right,
        wide_ranges_are_right,
        operations_are_right,
        _linear,
        _activations,
        _layer_norm,
        _other_norms,
        _batch_norm,
        _pictures,
        _embedding,
        _attention,
        _loss_functions,
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


def _linear(here: RankContext) -> None:
    layer = nn.Linear(12, 5)
    with torch.no_grad():
        layer.weight.copy_(small_integers((5, 12), 70))
        layer.bias.copy_(small_integers((5,), 71))
    inputs = small_integers((7, 12), 72)
    wanted = inputs.double() @ layer.weight.detach().double().t() + layer.bias.detach().double()
    _close("nn.Linear", layer.to(here.device)(inputs.to(here.device)), wanted, 0.0)


def _erf(values: torch.Tensor) -> torch.Tensor:
    return torch.tensor([math.erf(value) for value in values.flatten().tolist()], dtype=torch.float64).view(values.shape)


def _activations(here: RankContext) -> None:
    inputs = _points_of((64,), 73)
    wide = inputs.double()
    bell, below = torch.exp(-wide * wide / 2) / math.sqrt(2 * math.pi), (1 + _erf(wide / math.sqrt(2))) / 2
    above = (wide > 0).double()
    logistic = 1 / (1 + torch.exp(-wide))
    rows: Tuple[Tuple[str, Callable[[torch.Tensor], torch.Tensor], torch.Tensor, torch.Tensor], ...] = (
        ("nn.ReLU", nn.ReLU(), wide * above, above),
        ("torch.relu", torch.relu, wide * above, above),
        ("nn.GELU", nn.GELU(), wide * below, below + wide * bell),
        ("nn.SiLU", nn.SiLU(), wide * logistic, logistic * (1 + wide * (1 - logistic))),
        ("nn.Sigmoid", nn.Sigmoid(), logistic, logistic * (1 - logistic)),
        ("nn.Tanh", nn.Tanh(), torch.tanh(wide), 1 - torch.tanh(wide) ** 2),
    )
    for name, function, wanted, slope in rows:
        held = inputs.to(here.device, copy=True).requires_grad_()
        output = function(held)
        output.sum().backward()
        _close(name, output, wanted)
        _close("the gradient of %s" % name, held.grad, slope)


def _layer_norm(here: RankContext) -> None:
    """With inputs so small that epsilon counts."""
    inputs = _points_of((6, 16), 74) / 512
    layer = nn.LayerNorm(16)
    weight, bias = _points_of((16,), 75), _points_of((16,), 76)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    layer.to(here.device)
    held = inputs.to(here.device, copy=True).requires_grad_()
    output = layer(held)
    upstream = _points_of((6, 16), 77)
    output.backward(upstream.to(here.device))
    wide = inputs.double().requires_grad_()
    wanted = normalised(wide, 1) * weight.double() + bias.double()
    wanted.backward(upstream.double())
    _close("nn.LayerNorm", output, wanted.detach())
    _close("the input's gradient of nn.LayerNorm", held.grad, wide.grad)


def _other_norms(here: RankContext) -> None:
    inputs, weight, bias = _points_of((4, 6, 5), 87), _points_of((6,), 88), _points_of((6,), 89)
    wide = inputs.double()
    grouped = normalised(wide.reshape(4, 2, 15), 2).view(4, 6, 5) * weight.double()[:, None] + bias.double()[:, None]
    layer = nn.GroupNorm(2, 6)
    _weigh(layer, weight, bias)
    _close("nn.GroupNorm", layer.to(here.device)(inputs.to(here.device)), grouped)
    if not hasattr(nn, "RMSNorm"):  # torch 2.4
        return
    rows = inputs.transpose(1, 2)
    squares = (rows.double() ** 2).mean(2, keepdim=True)
    rms = nn.RMSNorm(6, eps=1e-3)
    _weigh(rms, weight, None)
    wanted = rows.double() / (squares + 1e-3).sqrt() * weight.double()
    _close("nn.RMSNorm", rms.to(here.device)(rows.to(here.device)), wanted)


def _weigh(layer: nn.Module, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> None:
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)


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


def _pictures(here: RankContext) -> None:
    """Try what stands between convolutions, in both memory layouts. No two values are equal: the largest of a field is one."""
    shape = (3, 4, 6, 6)
    values = (torch.arange(432) * 175 % 432).view(shape) / 64 - 3
    weight, bias = _points_of((4,), 65), _points_of((4,), 66)
    norm = nn.BatchNorm2d(4)
    _weigh(norm, weight, bias)
    rows: Tuple[Tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]], ...] = (
        (norm, lambda wide: normalised(wide, (0, 2, 3)) * weight.double()[:, None, None] + bias.double()[:, None, None]),
        (nn.MaxPool2d(2), lambda wide: wide.view(3, 4, 3, 2, 3, 2).amax((3, 5))),
        (nn.AvgPool2d(2), lambda wide: wide.view(3, 4, 3, 2, 3, 2).mean((3, 5))),
        (nn.AdaptiveAvgPool2d(1), lambda wide: wide.mean((2, 3), keepdim=True)),
    )
    for layer, formula in rows:
        for layout in (torch.contiguous_format, torch.channels_last):
            name = "nn.%s in %s" % (type(layer).__name__, str(layout)[6:])
            wide = values.double().requires_grad_()
            wanted = formula(wide)
            upstream = _points_of(tuple(wanted.shape), 67)
            wanted.backward(upstream.double())
            held = values.to(here.device, copy=True).contiguous(memory_format=layout).requires_grad_()
            output = layer.to(here.device)(held)
            output.backward(upstream.to(here.device))
            _close(name, output, wanted.detach())
            _close("the input's gradient of %s" % name, gradient_or_zeros(held), wide.grad)


def _embedding(here: RankContext) -> None:
    """Check that a word that comes twice adds to its row twice, and that the padding's row has no gradient."""
    words = torch.tensor([[1, 2, 1], [0, 1, 3]])
    layer = nn.Embedding(5, 4, padding_idx=0)
    table = small_integers((5, 4), 79)
    with torch.no_grad():
        layer.weight.copy_(table)
    layer.to(here.device)
    upstream = small_integers((2, 3, 4), 80)
    output = layer(words.to(here.device))
    output.backward(upstream.to(here.device))
    _close("nn.Embedding", output, torch.stack([table[word] for word in words.flatten().tolist()]).view(2, 3, 4).double(), 0.0)
    wanted = torch.zeros(5, 4, dtype=torch.float64)
    for word, row in zip(words.flatten().tolist(), upstream.view(6, 4)):
        wanted[word] += row.double() if word else 0
    _close("the gradient of nn.Embedding, whose words repeat,", layer.weight.grad, wanted, 0.0)


def _attention(here: RankContext) -> None:
    """All places, the earlier ones, and those that a mask lets through; what goes back to queries, keys and values, too."""
    parts = [_points_of((2, 3, 7, 8), seed) for seed in (81, 82, 83)]
    upstream = _points_of((2, 3, 7, 8), 68)
    masked = small_integers((2, 1, 7, 7), 69) > 0
    masked |= torch.eye(7, dtype=torch.bool)  # a place that sees none would have no answer
    earlier = torch.ones(7, 7, dtype=torch.bool).tril()
    rows: Tuple[Tuple[str, Dict[str, Any], Any], ...] = (
        ("attention", {}, 1.0),
        ("causal attention", {"is_causal": True}, earlier.double()),
        ("attention with a mask", {"attn_mask": masked.to(here.device)}, masked.double()),
    )
    for name, options, seen in rows:
        wide = [part.double().requires_grad_() for part in parts]
        weights = torch.exp(wide[0] @ wide[1].transpose(2, 3) / math.sqrt(8)) * seen
        wanted = weights / weights.sum(3, keepdim=True) @ wide[2]
        wanted.backward(upstream.double())
        held = [part.to(here.device, copy=True).requires_grad_() for part in parts]
        output = nn.functional.scaled_dot_product_attention(*held, **options)
        output.backward(upstream.to(here.device))
        _close(name, output, wanted.detach(), _OFF_PRODUCTS)
        for what, one, other in zip(("queries", "keys", "values"), held, wide):
            _close("the gradient of the %s of %s" % (what, name), gradient_or_zeros(one), other.grad, _OFF_PRODUCTS)


def gradient_or_zeros(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad


def _loss_functions(here: RankContext) -> None:
    scores, answers = _points_of((9, 4), 84), torch.tensor([0, 1, 2, 3, -100, 1, -100, 0, 2])
    held = scores.to(here.device, copy=True).requires_grad_()
    found = nn.functional.cross_entropy(held, answers.to(here.device))
    found.backward()
    wide = scores.double()
    shares = torch.exp(wide) / torch.exp(wide).sum(1, keepdim=True)
    counted = [number for number, answer in enumerate(answers.tolist()) if answer >= 0]
    wanted = -torch.stack([shares[number, answers[number]].log() for number in counted]).mean()
    slope = torch.zeros_like(shares)
    for number in counted:
        slope[number] = shares[number] / len(counted)
        slope[number, answers[number]] -= 1 / len(counted)
    _close("cross_entropy", found, wanted)
    _close("the gradient of cross_entropy", held.grad, slope)
    _close("softmax", torch.softmax(scores.to(here.device), 1), shares)
    level = torch.zeros(2, _LEVEL_ROW, device=here.device)
    _close("softmax of a long row", torch.softmax(level, 1) * _LEVEL_ROW, torch.ones(2, _LEVEL_ROW, dtype=torch.float64))
    _close(
        "log_softmax of a long row",
        torch.log_softmax(level, 1),
        torch.full((2, _LEVEL_ROW), -math.log(_LEVEL_ROW), dtype=torch.float64),
    )
    large = 200 * (wide - wide.amax(1, keepdim=True))
    powers = torch.exp(large)
    wanted = powers / powers.sum(1, keepdim=True)
    _close("softmax of numbers in the hundreds", torch.softmax(200 * scores.to(here.device), 1), wanted)
    near = _points_of((9, 4), 85)
    _close("mse_loss", nn.functional.mse_loss(scores.to(here.device), near.to(here.device)), ((wide - near.double()) ** 2).mean())


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
