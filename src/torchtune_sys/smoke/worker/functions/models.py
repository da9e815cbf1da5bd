"""What models are made of, beside formulas in float64."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any, Iterator, List

import torch
import torch.nn.functional as functional
from torch import nn

from torchtune_sys.smoke.worker.functions.inputs import distinct, normalised, positive
from torchtune_sys.smoke.worker.functions.operators import Operator

_VOCABULARY = 5000
"""More than any kernel takes in one block."""
_LEVEL_ROW = 5003


def functions_of_models() -> Iterator[Operator]:
    """Yield norms, losses, attention, and the modules that stand for functions."""
    for part in (_norms_of_pictures, _losses_of_rows, _words_and_scores, _attentions, _modules):
        yield from part()


def _norms_of_pictures() -> Iterator[Operator]:
    given, weight, bias = distinct(3, 4, 2, 5, seed=41), distinct(4), distinct(4, seed=3)
    yield Operator("instance_norm", "", (given,), lambda one: normalised(one, (2, 3)), way=functional.instance_norm, batch=(0,))
    yield Operator(
        "group_norm",
        "",
        (given, weight, bias),
        lambda one, by, plus: normalised(one.reshape(3, 2, 20), 2).view(3, 4, 2, 5) * by[:, None, None] + plus[:, None, None],
        way=lambda one, by, plus: functional.group_norm(one, 2, by, plus),
        batch=(0,),
    )
    yield Operator(
        "batch_norm",
        "",
        (given, weight, bias),
        lambda one, by, plus: normalised(one, (0, 2, 3)) * by[:, None, None] + plus[:, None, None],
        way=lambda one, by, plus: functional.batch_norm(one, None, None, by, plus, training=True),
        low=False,
        batch=(0,),
    )
    yield Operator(
        "batch_norm in eval",
        "",
        (given, weight, bias),
        lambda one, by, plus: (one - by[:, None, None]) / (abs(plus[:, None, None]) + 1e-5) ** 0.5,
        way=lambda one, by, plus: functional.batch_norm(one, by, plus.abs()),
        low=False,
        batch=(0,),
        slope=False,
    )
    small = distinct(6, 16, seed=41) / 512
    yield Operator(
        "layer_norm of numbers so small that its epsilon counts",
        "",
        (small, distinct(16), distinct(16, seed=3)),
        lambda one, by, plus: normalised(one, 1) * by + plus,
        way=lambda one, by, plus: functional.layer_norm(one, (16,), by, plus),
        low=False,
        batch=(0,),
    )
    yield Operator(
        "rms_norm",
        "f" if hasattr(functional, "rms_norm") else "",
        (distinct(3, 20, seed=41), (20,), distinct(20)),
        lambda one, _shape, by, eps: one / ((one * one).mean(1, keepdim=True) + eps) ** 0.5 * by,
        {"eps": 1e-3},
        batch=(0,),
    )
    yield Operator(
        "local_response_norm",
        "f",
        (distinct(2, 4, 3), 3),
        lambda one, size: torch.stack(
            [one[:, place] / (1 + 1e-4 / 3 * (one[:, max(place - 1, 0) : place + 2] ** 2).sum(1)) ** 0.75 for place in range(4)],
            1,
        ),
    )


def _losses_of_rows() -> Iterator[Operator]:
    one, other = distinct(6, 7), distinct(6, 7, seed=43)
    share, truth = positive(6, 7).clamp(0.05, 0.95), (other > 0).double()
    for name, given, formula in (
        ("mse_loss", (one, other), lambda a, b: (a - b) ** 2),
        ("l1_loss", (one, other), lambda a, b: (a - b).abs()),
        ("smooth_l1_loss", (one, other), lambda a, b: torch.where((a - b).abs() < 1, (a - b) ** 2 / 2, (a - b).abs() - 0.5)),
        ("huber_loss", (one, other), lambda a, b: torch.where((a - b).abs() < 1, (a - b) ** 2 / 2, (a - b).abs() - 0.5)),
        ("binary_cross_entropy", (share, truth), lambda a, b: -(b * a.log() + (1 - b) * (1 - a).log())),
        ("binary_cross_entropy_with_logits", (one, truth), lambda a, b: (1 + (-a).exp()).log() + (1 - b) * a),
        ("kl_div", (one, share), lambda a, b: b * (b.log() - a)),
        ("poisson_nll_loss", (one, other.abs()), lambda a, b: a.exp() - b * a),
        ("soft_margin_loss", (one, 2 * truth - 1), lambda a, b: (1 + (-b * a).exp()).log()),
    ):  # fmt: skip
        for reduction in ("mean", "sum", "none")[name == "kl_div" :]:  # its mean warns
            yield Operator(
                name,
                "f",
                given,
                lambda a, b, reduction, formula=formula: _folded_by(formula(a, b), reduction),
                {"reduction": reduction},
                slope=name not in ("binary_cross_entropy", "kl_div", "soft_margin_loss"),
                low=False,
                batch=(0, 1) if reduction == "none" else (),
            )
    anchor, near, far = (distinct(5, 6, seed=seed) for seed in (37, 41, 43))
    yield Operator(
        "triplet_margin_loss",
        "f",
        (anchor, near, far),
        lambda a, b, c: [
            float((((a - b + 1e-6) ** 2).sum(1) ** 0.5 - ((a - c + 1e-6) ** 2).sum(1) ** 0.5 + 1).clamp(min=0).mean())
        ],
        low=False,
    )
    marks = torch.tensor([1.0, -1, 1, -1, 1], dtype=torch.float64)
    yield Operator(
        "margin_ranking_loss",
        "f",
        (anchor[:, 0], near[:, 0], marks),
        lambda a, b, mark: [float((-mark * (a - b)).clamp(min=0).mean())],
        low=False,
        slope=False,
    )
    yield Operator(
        "ctc_loss",
        "",
        (distinct(4, 1, 3).log_softmax(2),),
        _ways_to_say,
        way=lambda scores: functional.ctc_loss(
            scores, torch.tensor([[1, 2]], device=scores.device), torch.tensor([4]), torch.tensor([2]), reduction="sum"
        ),
        low=False,
        slope=False,
    )


def _folded_by(values: torch.Tensor, reduction: str) -> Any:
    return values if reduction == "none" else [float(values.sum()) / (values.numel() if reduction == "mean" else 1)]


def _ways_to_say(scores: torch.Tensor) -> List[float]:
    """Every row of four signs that says 1, 2 when repetitions and blanks (0) are taken out."""
    whole = 0.0
    for signs in itertools.product(range(3), repeat=4):
        said = [sign for sign, _ in itertools.groupby(signs)]
        if [sign for sign in said if sign] == [1, 2]:
            whole += math.exp(sum(float(scores[place, 0, sign]) for place, sign in enumerate(signs)))
    return [-math.log(whole)]


def _words_and_scores() -> Iterator[Operator]:
    """Of few and of many words."""
    answers = torch.tensor([0, 3, 2, -100, 1, 3])
    weights = torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=torch.float64)
    scores = distinct(6, 4, seed=5)
    for reduction in ("mean", "sum", "none"):
        for options in ({}, {"label_smoothing": 0.25}):
            yield Operator(
                "cross_entropy",
                "f",
                (scores, answers),
                _cross_entropy_of,
                {"reduction": reduction, **options},
                low=False,
                batch=(0, 1) if reduction == "none" else (),
            )
        yield Operator(
            "nll_loss",
            "f",
            (scores, answers),
            lambda one, at, reduction: _cross_entropy_of(one, at, reduction, raw=True),
            {"reduction": reduction},
            low=False,
            batch=(0, 1) if reduction == "none" else (),
        )
    for options in ({}, {"label_smoothing": 0.25}):
        yield Operator(
            "cross_entropy",
            "f",
            (scores, answers, weights),
            lambda one, at, by, **more: _cross_entropy_of(one, at, "mean", by=by, **more),
            options,
            low=False,
            slope=False,
        )
    yield Operator(
        "cross_entropy",
        "",
        (distinct(2, 4, 3, seed=5), torch.tensor([[0, 3, 2], [-100, 1, 3]])),
        lambda one, at: _cross_entropy_of(one.permute(0, 2, 1).reshape(6, 4), at.flatten(), "mean"),
        way=functional.cross_entropy,
        low=False,
    )
    many = torch.tensor([_VOCABULARY - 1, 17])
    yield Operator(
        "cross_entropy", "f", (distinct(2, _VOCABULARY) * 4, many), lambda one, at: _cross_entropy_of(one, at, "mean"), low=False
    )
    level = torch.zeros(2, _LEVEL_ROW, dtype=torch.float64)
    large = distinct(9, 4, seed=5) * 200
    for name, given in (("a long row", level), ("numbers in the hundreds", large)):
        for kind, place in itertools.product(("softmax", "log_softmax"), (torch, functional)):
            yield Operator(
                "%s of %s" % (kind, name),
                "",
                (given,),
                lambda one, kind=kind: _shares_of(one, kind == "log_softmax") * _LEVEL_ROW,
                way=lambda one, kind=kind, place=place: getattr(place, kind)(one, 1) * _LEVEL_ROW,
                low=False,
                slope=False,
                batch=(0,),
            )
    words = torch.tensor([[1, 2, 1], [0, 1, 3]])
    yield Operator(
        "embedding whose first row is padding",
        "",
        (distinct(5, 4),),
        lambda one: torch.cat([one[:1] * 0 + 1, one[1:]])[words],
        way=lambda one: functional.embedding(words.to(one.device), torch.cat([one[:1].detach() * 0 + 1, one[1:]]), padding_idx=0),
    )
    table = distinct(_VOCABULARY, 3)
    yield Operator(
        "embedding",
        "f",
        (torch.tensor([0, _VOCABULARY - 1, 17, 17]), table),
        lambda at, one: one[torch.tensor([0, _VOCABULARY - 1, 17, 17])],
        low=False,
        batch=(0,),
    )


def _shares_of(rows: torch.Tensor, logarithms: bool) -> torch.Tensor:
    off = rows - rows.amax(1, keepdim=True)
    whole = off.exp().sum(1, keepdim=True)
    return off - whole.log() if logarithms else off.exp() / whole


def _cross_entropy_of(
    scores: torch.Tensor,
    answers: torch.Tensor,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    raw: bool = False,
    by: Any = None,
) -> List[float]:
    found, counted = [], 0.0
    for row, answer in zip(scores.tolist(), answers.tolist()):
        most = 0.0 if raw else max(row)
        whole = 0.0 if raw else most + math.log(math.fsum(math.exp(one - most) for one in row))
        weights = [1.0] * len(row) if by is None else by.tolist()
        weight = weights[answer] if answer >= 0 else 0.0
        smooth = math.fsum(each * (whole - one) for each, one in zip(weights, row)) / len(row)
        found.append((1 - label_smoothing) * weight * (whole - row[answer]) + label_smoothing * smooth if answer >= 0 else 0.0)
        counted += weight
    return found if reduction == "none" else [math.fsum(found) / (counted if reduction == "mean" else 1.0)]


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None, scale: float = 0.0) -> torch.Tensor:
    scores = (query[..., :, None, :] * key[..., None, :, :]).sum(-1) * (scale or 1 / math.sqrt(query.shape[-1]))
    scores = (
        scores if mask is None else scores + (mask if mask.dtype == torch.float64 else torch.where(mask, 0.0, -math.inf).double())
    )
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return ((weights / weights.sum(-1, keepdim=True))[..., None] * value[..., None, :, :]).sum(-2)


def _attention_as_called(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *mask: Any, **more: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, **({"attn_mask": mask[0]} if mask else {}), **more)


def _attention_takes(option: str, value: Any) -> bool:
    """Return whether attention has an option: ``scale`` since torch 2.1, ``enable_gqa`` since 2.5."""
    one = torch.ones(1, 1, 1, 1)
    try:
        functional.scaled_dot_product_attention(one, one, one, **{option: value})
    except TypeError:
        return False
    return True


def _attentions() -> Iterator[Operator]:
    """Of few and of many places, each way that a mask may be given."""
    for places in (7, 1030):
        shape = (2, 3, places, 4) if places == 7 else (1, 1, places, 4)
        query = distinct(*shape[:2], 5, 4, seed=41)
        key, value = (distinct(*shape, seed=seed) for seed in (43, 47))
        told = (torch.arange(5)[:, None] * 3 + torch.arange(places)[None]) % 4 > 0
        bias = distinct(5, places)
        for name, options in (
            ("attention", {}),
            ("attention with a mask", {"attn_mask": told}),
            ("attention with a mask of numbers", {"attn_mask": bias}),
            ("attention of another scale", {"scale": 0.25}),
        ):  # fmt: skip
            more = {name: one for name, one in options.items() if name == "scale"}
            mask = options.get("attn_mask")
            given = (query, key, value) if mask is None else (query, key, value, mask)
            if more and not _attention_takes("scale", 1.0):
                continue
            yield Operator(
                name,
                "",
                given,
                _attended,
                more,
                way=_attention_as_called,
                low=places == 7,
                batch=(0, 1, 2) if places == 7 else (),
            )
    for options in ({}, {"is_causal": True}) if _attention_takes("enable_gqa", True) else ():
        seen = torch.ones(7, 7, dtype=torch.bool).tril() if options else None
        yield Operator(
            "attention of six heads to two (enable_gqa)",
            "",
            (distinct(2, 6, 7, 4, seed=41), distinct(2, 2, 7, 4, seed=43), distinct(2, 2, 7, 4, seed=47)),
            lambda one, two, three, seen=seen: _attended(one, two.repeat_interleave(3, 1), three.repeat_interleave(3, 1), seen),
            way=lambda *three, options=options: functional.scaled_dot_product_attention(*three, enable_gqa=True, **options),
            low=False,
            batch=(0, 1, 2),
        )
    for places in (9, 600):
        causal = torch.ones(places, places, dtype=torch.bool).tril()
        given = tuple(distinct(1, 1, places, 4, seed=seed) for seed in (41, 43, 47))
        yield Operator(
            "causal attention",
            "",
            given,
            lambda one, two, three, causal=causal: _attended(one, two, three, causal),
            way=lambda *three: functional.scaled_dot_product_attention(*three, is_causal=True),
            slope=places == 9,
            low=places == 9,
            batch=(0, 1, 2) if places == 9 else (),
        )


def _modules() -> Iterator[Operator]:
    """Modules beside the functions that they stand for, which were tried before."""
    rows, line, picture, room = (
        distinct(5, 12),
        distinct(2, 4, 9, seed=41),
        distinct(1, 4, 6, 5, seed=41),
        distinct(1, 2, 4, 4, 3, seed=41),
    )
    for module, given, function in (
        (nn.ReLU(), rows, functional.relu), (nn.ReLU6(), rows, functional.relu6), (nn.ELU(), rows, functional.elu), (nn.SELU(), rows, functional.selu),
        (nn.GELU(), rows, functional.gelu), (nn.SiLU(), rows, functional.silu), (nn.Mish(), rows, functional.mish), (nn.Softplus(), rows, functional.softplus),
        (nn.Sigmoid(), rows, torch.sigmoid), (nn.Tanh(), rows, torch.tanh), (nn.LeakyReLU(), rows, functional.leaky_relu), (nn.Hardswish(), rows, functional.hardswish),
        (nn.Softmax(1), rows, lambda one: functional.softmax(one, 1)), (nn.LogSoftmax(1), rows, lambda one: functional.log_softmax(one, 1)),
        (nn.PReLU(init=0.25), rows, lambda one: functional.leaky_relu(one, 0.25)), (nn.GLU(), rows, lambda one: one[:, :6] * torch.sigmoid(one[:, 6:])),
        (nn.LayerNorm(12, elementwise_affine=False), rows, lambda one: functional.layer_norm(one, (12,))), (nn.Flatten(), line, lambda one: one.reshape(2, 36)),
        (nn.GroupNorm(2, 4, affine=False), line, lambda one: functional.group_norm(one, 2)), (nn.InstanceNorm1d(4), line, functional.instance_norm),
        (nn.MaxPool1d(2), line, lambda one: functional.max_pool1d(one, 2)), (nn.AvgPool1d(2), line, lambda one: functional.avg_pool1d(one, 2)),
        (nn.MaxPool2d(2), picture, lambda one: functional.max_pool2d(one, 2)), (nn.AvgPool2d(2), picture, lambda one: functional.avg_pool2d(one, 2)),
        (nn.MaxPool3d(2), room, lambda one: functional.max_pool3d(one, 2)), (nn.AvgPool3d(2), room, lambda one: functional.avg_pool3d(one, 2)),
        (nn.AdaptiveAvgPool2d((3, 2)), picture, lambda one: functional.adaptive_avg_pool2d(one, (3, 2))), (nn.PixelShuffle(2), picture, lambda one: functional.pixel_shuffle(one, 2)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), picture, lambda one: functional.interpolate(one, scale_factor=2, mode="bilinear", align_corners=False)),
        (nn.ZeroPad2d(1), picture, lambda one: functional.pad(one, (1, 1, 1, 1))), (nn.ReflectionPad2d(1), picture, lambda one: functional.pad(one, (1, 1, 1, 1), "reflect")),
        (nn.Unfold(3), picture, lambda one: functional.unfold(one, 3)), (nn.Identity(), rows, lambda one: one), (nn.Dropout(0.5).eval(), rows, lambda one: one),
    ):  # fmt: skip
        sixths = isinstance(module, nn.Hardswish)
        yield Operator(
            "nn.%s" % type(module).__name__, "", (given,), function, way=_moved(module), low=False, by_sixths=sixths, batch=(0,)
        )


def _moved(module: nn.Module) -> Any:
    """Return what calls a copy, where it has weights: those that the graph of an earlier call holds cannot be swapped."""
    return (lambda given: copy.deepcopy(module).to(given.device, given.dtype)(given)) if [*module.parameters()] else module
