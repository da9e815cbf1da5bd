"""What few trainings call, in rows: a name, what is done on the CPU and what is right, by arithmetic or because it must give back what it was made of."""

from __future__ import annotations

import math
import warnings
from typing import Any, Iterator, List, Tuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune, rnn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.combined import beside_what_is_right
from torchtune_sys.smoke.worker.functions.inputs import distinct
from torchtune_sys.smoke.worker.functions.known_answers import numbers_of
from torchtune_sys.smoke.worker.functions.seldom_answers import (
    Known,
    averages_of_weights,
    counted,
    derivatives,
    draws_by_odds,
    factors,
    items_of_data,
    numbers_of_few_bits,
    odds_of_values,
    sparse_and_nested,
)
from torchtune_sys.smoke.worker.functions.tried import is_lacking

_OFF_KNOWN = 2.0**-13
_ALPHA = -1.7580993408473766
"""Of SELU: what alpha dropout puts in place of a number (arXiv 1706.02515)."""
_LAZY = {
    "Linear": 1,
    "Conv1d": 3,
    "Conv2d": 4,
    "Conv3d": 5,
    "ConvTranspose1d": 3,
    "ConvTranspose2d": 4,
    "ConvTranspose3d": 5,
    "BatchNorm1d": 3,
    "BatchNorm2d": 4,
    "BatchNorm3d": 5,
    "InstanceNorm1d": 3,
    "InstanceNorm2d": 4,
    "InstanceNorm3d": 5,
}
"""Modules that learn their size from the first input, and how many dimensions that has."""


def seldom_calls_are_right(here: RankContext) -> None:
    """Raise StageFailed for the first that is wrong. What a release does not have is left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part, cause in (
            (_pools_and_pads, "layer-wrong"), (_modules_of_modules, "layer-wrong"), (_seldom_losses, "layer-wrong"), (_dropouts, "layer-wrong"), (_of_sizes_unknown, "layer-wrong"), (_in_eval, "layer-wrong"),
            (_parameters_changed, "layer-wrong"), (_attends, "layer-wrong"), (numbers_of_few_bits, "device-computes-wrong"), (sparse_and_nested, "device-computes-wrong"), (factors, "device-computes-wrong"),
            (draws_by_odds, "random-numbers-wrong"), (averages_of_weights, "optimizer-wrong"), (derivatives, "autograd-wrong"), (odds_of_values, "device-computes-wrong"), (items_of_data, "dataloader-corrupts"),
        ):  # fmt: skip
            for name, work, right in part():
                try:
                    found, wanted = numbers_of(work()), numbers_of(right)
                except Exception as error:
                    if not is_lacking(error):
                        raise
                    continue
                wrong = None
                if found.shape == wanted.shape:
                    wrong = ~((found - wanted).abs() <= _OFF_KNOWN * wanted.abs().clamp(min=1))
                if wrong is None or bool(wrong.any()):
                    raise StageFailed(cause, beside_what_is_right(name, found, wanted, wrong))


def _fractional_ends(share: float, size: int, parts: int) -> List[float]:
    """Return the last place of each region of two (Graham, Fractional Max-Pooling, arXiv 1412.6071)."""
    step = (size - 2) / (parts - 1)
    return [float(int((part + share) * step) - int(share * step) + 1) for part in range(parts - 1)] + [float(size - 1)]


def _pools_and_pads() -> Iterator[Known]:
    line, picture, room = counted(1, 1, 6), counted(1, 1, 4, 4), counted(1, 1, 2, 4, 4)
    for dims, given in ((1, line), (2, picture), (3, room)):
        pool, unpool = getattr(nn, "MaxPool%dd" % dims)(2, return_indices=True), getattr(nn, "MaxUnpool%dd" % dims)(2)
        yield ("nn.MaxUnpool%dd" % dims, lambda pool=pool, unpool=unpool, given=given: unpool(*pool(given)).sum([0, 1]).flatten().nonzero(), pool(given)[1].flatten().sort()[0])  # fmt: skip
        pads = [1, 2] * dims

        def circled(given: torch.Tensor = given, dims: int = dims) -> torch.Tensor:
            for dim in range(2, 2 + dims):
                given = torch.cat([given.narrow(dim, given.shape[dim] - 1, 1), given, given.narrow(dim, 0, 2)], dim)
            return given

        yield ("pad (circular, 1 before and 2 behind) in %d dimension(s)" % dims, lambda given=given, pads=pads: functional.pad(given, pads, "circular"), circled())  # fmt: skip
        for mode, index in (("reflect", [1, 0, 1]), ("replicate", [0, 0, 1])):
            small = (
                torch.tensor([3.0, 5.0])
                .view([1, 1] + [1] * (dims - 1) + [2])
                .repeat([1, 1] + [2] * (dims - 1) + [1])
                .requires_grad_()
            )
            more = [1, 0] + [0, 0] * (dims - 1)
            yield ("pad (%s) in %d dimension(s)" % (mode, dims), lambda small=small, more=more, mode=mode: functional.pad(small, more, mode).detach(), small.detach()[..., index])  # fmt: skip
            slope = [1.0, 2.0] if mode == "reflect" else [2.0, 1.0]
            yield ("the gradient of pad (%s) in %d dimension(s)" % (mode, dims), lambda small=small, more=more, mode=mode: torch.autograd.grad(functional.pad(small, more, mode).sum(), small)[0], torch.tensor(slope).expand(small.shape))  # fmt: skip
    shares = torch.tensor([[[0.0, 0.3]], [[0.3, 0.0]]])
    ends = [[_fractional_ends(share, 9, 4) for share in one[0]] for one in shares.tolist()]
    wide = [[9 * down + right for down in each[1] for right in each[0]] for each in ends]
    yield ("nn.FractionalMaxPool2d of regions that are given", lambda: nn.FractionalMaxPool2d(2, output_size=4, _random_samples=shares)(counted(1, 1, 9, 9).expand(2, 1, 9, 9)), wide)  # fmt: skip
    thick = torch.cat([shares[..., :1] * 0, shares], 2)[..., [0, 2, 1]]
    yield from (
        ("nn.FractionalMaxPool3d of regions that are given", lambda: nn.FractionalMaxPool3d(2, output_size=(1, 4, 4), _random_samples=thick)(counted(1, 1, 4, 9, 9).expand(2, 1, 4, 9, 9)), [[3 * 81 + one for one in each] for each in wide]),
        ("nn.LPPool3d", lambda: nn.LPPool3d(1, 2)(room), [float(room[..., at : at + 2, to : to + 2].sum()) for at in (0, 2) for to in (0, 2)]),
        ("nn.UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2)(picture), picture.repeat_interleave(2, 2).repeat_interleave(2, 3)),
        ("nn.UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(7)(picture)[..., ::2, ::2], picture),
        ("nn.ZeroPad3d", lambda: nn.ZeroPad3d(1)(room)[..., 1:-1, 1:-1, 1:-1].sum() + nn.ZeroPad3d(1)(room).sum(), 2 * room.sum()),
    )  # fmt: skip
    turn = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]])
    for mode in ("bilinear", "nearest", "bicubic"):
        yield ("grid_sample (%s) of affine_grid, a quarter turn" % mode, lambda mode=mode: functional.grid_sample(picture, functional.affine_grid(turn, [1, 1, 4, 4], align_corners=False), mode, align_corners=False), picture.rot90(1, (2, 3)))  # fmt: skip
    still = torch.eye(3, 4)[None]
    yield from (
        ("grid_sample of affine_grid in a room", lambda: functional.grid_sample(room, functional.affine_grid(still, [1, 1, 2, 4, 4], align_corners=True), align_corners=True), room),
        ("interpolate (area)", lambda: functional.interpolate(picture, size=2, mode="area"), [2.5, 4.5, 10.5, 12.5]),
        ("interpolate (nearest-exact)", lambda: functional.interpolate(line, size=3, mode="nearest-exact"), [1, 3, 5]),
        ("interpolate (bilinear, antialias) of a level", lambda: functional.interpolate(picture * 0 + 3, size=2, mode="bilinear", antialias=True), [3, 3, 3, 3]),
    )  # fmt: skip


def _modules_of_modules() -> Iterator[Known]:
    given = distinct(2, 5, 8).float()

    def stack(kind: str, *more: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        layer = getattr(nn, "Transformer%sLayer" % kind)(8, 2, 16, 0.0, batch_first=True)
        layers = getattr(nn, "Transformer%s" % kind)(layer, 2)
        one = given
        for each in layers.layers:
            one = each(one, *more)
        return layers(given, *more), one

    for kind, more in (("Encoder", ()), ("Decoder", (given,))):
        yield ("nn.Transformer%s is its layers" % kind, lambda kind=kind, more=more: (lambda pair: pair[0] - pair[1])(stack(kind, *more)).detach(), given * 0)  # fmt: skip
    whole = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)
    yield ("nn.Transformer is encoder and decoder", lambda: (whole(given, given) - whole.decoder(given, whole.encoder(given))).detach(), given * 0)  # fmt: skip
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    yield ("Transformer.generate_square_subsequent_mask", lambda: (mask == 0).int(), [1, 0, 0, 1, 1, 0, 1, 1, 1])
    listed = nn.ModuleList([nn.Linear(1, 1) for _ in range(12)])
    yield ("nn.ModuleList, in order", lambda: [int(name.split(".")[0]) for name in listed.state_dict()][::2], list(range(12)))  # fmt: skip
    held = nn.ParameterDict({"b": nn.Parameter(torch.ones(2)), "a": nn.Parameter(torch.zeros(1))})
    yield from (
        ("nn.ParameterDict", lambda: [len(dict(held.named_parameters())), float(held["b"].detach().sum())], [2, 2]),
        ("nn.ParameterList", lambda: [one.detach() for one in nn.ParameterList([torch.ones(1), torch.ones(2) * 2])], [1, 2, 2]),
    )  # fmt: skip
    buffered = nn.BatchNorm1d(2)
    yield from (
        ("Module.to leaves whole numbers", lambda: [buffered.half().running_mean.dtype == torch.float16, buffered.num_batches_tracked.dtype == torch.int64], [1, 1]),
        ("nn.ChannelShuffle undone", lambda: nn.ChannelShuffle(2)(nn.ChannelShuffle(3)(counted(1, 6, 1, 1))), counted(6)),
    )  # fmt: skip


def _seldom_losses() -> Iterator[Known]:
    log, level = math.log, torch.zeros(3, 1, 2).log_softmax(2).requires_grad_()
    word, lengths = torch.tensor([[1]]), (torch.tensor([3]), torch.tensor([1]))
    yield from (
        ("nn.CTCLoss", lambda: nn.CTCLoss()(level, word, *lengths).detach(), -log(6 / 8)),
        ("nn.CTCLoss of two that are alike", lambda: nn.CTCLoss(reduction="sum")(level.detach(), torch.tensor([[1, 1]]), lengths[0], torch.tensor([2])), -log(1 / 8)),
        ("the gradient of nn.CTCLoss", lambda: torch.autograd.grad(nn.CTCLoss(reduction="sum")(level, word, *lengths), level)[0].sum(), -3.0 + 3.0),
    )  # fmt: skip
    share = torch.tensor([0.5, 0.25], requires_grad=True)
    yield from (
        ("nn.BCELoss", lambda: nn.BCELoss(reduction="none")(share, torch.tensor([1.0, 0.0])).detach(), [log(2), -log(0.75)]),
        ("the gradient of nn.BCELoss", lambda: torch.autograd.grad(nn.BCELoss(reduction="sum")(share, torch.tensor([1.0, 0.0])), share)[0], [-2, 4 / 3]),
    )  # fmt: skip
    scores = torch.tensor([[0.1, 0.2, 0.4, 0.8]])
    yield ("nn.MultiLabelMarginLoss", lambda: nn.MultiLabelMarginLoss()(scores, torch.tensor([[3, 0, -1, 1]])), 0.85)
    far = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(1), margin=1.0)
    yield ("nn.TripletMarginWithDistanceLoss", lambda: far(torch.zeros(1, 2), torch.ones(1, 2) * 2, torch.ones(1, 2)), 3.0)  # fmt: skip
    adaptive = nn.AdaptiveLogSoftmaxWithLoss(4, 9, [2, 5])
    rows = distinct(5, 4).float()
    yield ("nn.AdaptiveLogSoftmaxWithLoss, shares of a row", lambda: adaptive.log_prob(rows).exp().sum(1).detach(), [1] * 5)  # fmt: skip
    answers = torch.tensor([0, 3, 8, 4, 1])
    yield from (
        ("nn.AdaptiveLogSoftmaxWithLoss", lambda: (adaptive(rows, answers)[0] - adaptive.log_prob(rows).gather(1, answers[:, None])[:, 0]).detach(), [0] * 5),
        ("cross_entropy with weights, label_smoothing and ignore_index", lambda: functional.cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, 2]), torch.tensor([1.0, 2, 3, 4]), ignore_index=2, label_smoothing=0.5), log(4) * (0.5 * 3 + 0.125 * 20) / 3),
        ("cross_entropy of pictures", lambda: functional.cross_entropy(torch.zeros(2, 4, 3, 3), torch.ones(2, 3, 3, dtype=torch.int64)), log(4)),
        ("cross_entropy of shares with weights", lambda: functional.cross_entropy(torch.zeros(1, 2), torch.tensor([[0.25, 0.75]]), torch.tensor([1.0, 3.0])), log(2) * 2.5),
        ("kl_div (batchmean)", lambda: functional.kl_div(torch.tensor([[0.5, 0.5]] * 2).log(), torch.tensor([[0.25, 0.75]] * 2), reduction="batchmean"), 0.25 * log(0.5) + 0.75 * log(1.5)),
        ("nll_loss of pictures", lambda: functional.nll_loss(-counted(1, 2, 2, 2), torch.tensor([[[0, 1], [1, 0]]]), reduction="none"), [0, 5, 6, 3]),
    )  # fmt: skip


def _dropouts() -> Iterator[Known]:
    a = 1 / math.sqrt(0.5 * (1 + 0.5 * _ALPHA**2))
    low, ones = [a * _ALPHA - a * _ALPHA * 0.5, a - a * _ALPHA * 0.5], torch.ones(2, 4096)
    for name in ("AlphaDropout", "FeatureAlphaDropout"):
        yield ("nn.%s of ones" % name, lambda name=name: getattr(nn, name)(0.5)(ones.view(64, 128, 1)).unique(), low)
    for name, shape in (("Dropout1d", (64, 64, 3)), ("Dropout3d", (64, 64, 2, 1, 2)), ("FeatureAlphaDropout", (64, 64, 2, 1, 2))):

        def kept(name: str = name, shape: Any = shape) -> Any:
            whole = getattr(nn, name)(0.5)(torch.ones(shape)).flatten(2)
            return [bool((whole == whole[..., :1]).all()), abs(float((whole[..., 0] > 0.9).double().mean()) - 0.5) < 0.06]

        yield ("nn.%s drops half of the channels, each as a whole" % name, kept, [1, 1])
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"):
        yield ("nn.%s in eval" % name, lambda name=name: (getattr(nn, name)().eval()(torch.ones([2] * (5 if "3d" in name else 4 if "2d" in name else 3))).unique()), 1.0)  # fmt: skip
    yield from (
        ("rrelu in training, between alike bounds", lambda: functional.rrelu(-ones[:, :4], 0.25, 0.25, True).unique(), -0.25),
        ("nn.RReLU in eval", lambda: nn.RReLU(0.25, 0.75).eval()(-ones[:, :4]).unique(), -0.5),
        ("gumbel_softmax (hard)", lambda: functional.gumbel_softmax(torch.tensor([[0.0, 200, 0], [0, 0, 200]]), hard=True), [0, 1, 0, 0, 0, 1]),
        ("gumbel_softmax, shares of a row", lambda: functional.gumbel_softmax(ones[:, :9], tau=0.5).sum(1), [1, 1]),
        ("gumbel_softmax, how often each", lambda: [abs(float(one) - 0.25) < 0.06 for one in functional.gumbel_softmax(torch.zeros(4096, 4), hard=True).mean(0)], [1] * 4),
    )  # fmt: skip


def _of_sizes_unknown() -> Iterator[Known]:
    for kind, dims in _LAZY.items():

        def made(kind: str = kind, dims: int = dims) -> Any:
            torch.manual_seed(3)
            options = {"affine": True} if "Instance" in kind else {}
            layer = getattr(nn, "Lazy" + kind)(*(() if "Norm" in kind else (4,) if kind == "Linear" else (4, 1)), **options)
            layer(torch.ones([2, 3, 2, 2, 2][:dims] if dims > 1 else [2, 3]))
            weight = layer.weight.detach()
            drawn = (
                bool((weight == 1).all())
                if "Norm" in kind
                else float(weight.std()) > 0.1
                and float(weight.abs().max()) <= 1 / math.sqrt(3 if "Transpose" not in kind else 4) + 1e-6
            )
            return [type(layer) is getattr(nn, kind), 3 in weight.shape, drawn]

        yield ("nn.Lazy%s" % kind, made, [1, 1, 1])


def _in_eval() -> Iterator[Known]:
    for kind in ("BatchNorm", "InstanceNorm"):
        for dims in (1, 2, 3):

            def stands(kind: str = kind, dims: int = dims) -> Any:
                layer = getattr(nn, "%s%dd" % (kind, dims))(2, eps=1.0, affine=True, track_running_stats=True).eval()
                layer.running_mean.fill_(1.0)
                layer.running_var.fill_(3.0)
                found = layer(counted(1, 2, *[2] * dims))
                return [*found.detach().flatten()[:4], float(layer.running_mean.sum()), int(layer.num_batches_tracked)]

            yield ("nn.%s%dd in eval" % (kind, dims), stands, [-0.5, 0, 0.5, 1, 2, 0])


def _parameters_changed() -> Iterator[Known]:
    utils: Any = nn.utils
    weight, many = distinct(4, 6).float(), distinct(4, 6)

    def layer() -> nn.Linear:
        made = nn.Linear(6, 4)
        with torch.no_grad():
            made.weight.copy_(weight)
        return made

    def written() -> Any:
        held = [torch.zeros(2, 2), torch.zeros(3)]
        utils.vector_to_parameters(torch.arange(7.0), held)
        return held

    def with_gradients() -> List[nn.Parameter]:
        held = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        for one, slope in zip(held, (3.0, 4.0)):
            one.grad = torch.tensor([slope])
        return held

    def clipped() -> Any:
        held = with_gradients()
        total = utils.get_total_norm([one.grad for one in held])
        utils.clip_grads_with_norm_(held, 2.5, total)
        return [total, *(one.grad for one in held)]

    def back_again(kind: str) -> Any:
        made = layer()
        getattr(utils.parametrizations, kind)(made)
        utils.parametrize.remove_parametrizations(made, "weight")
        return [made.weight.detach(), float(made.weight.requires_grad)]

    yield from (
        ("nn.utils.vector_to_parameters", written, [0, 1, 2, 3, 4, 5, 6]), ("nn.utils.get_total_norm, clip_grads_with_norm_", clipped, [5, 1.5, 2]),
    )  # fmt: skip
    for order, norm, left in ((1.0, 7.0, [1.5, 2.0]), (math.inf, 4.0, [2.625, 3.5])):
        held = with_gradients()
        yield ("clip_grad_norm_ (norm_type %g)" % order, lambda held=held, order=order: [utils.clip_grad_norm_(held, 3.5, order), *(one.grad for one in held)], [norm, *left])  # fmt: skip
    yield from (
        ("parametrizations.weight_norm, removed", lambda: back_again("weight_norm"), [*weight.flatten().tolist(), 1]),
        ("parametrizations.spectral_norm", lambda: torch.linalg.matrix_norm(utils.parametrizations.spectral_norm(layer(), n_power_iterations=60).weight.detach(), 2), 1.0),
        ("parametrizations.orthogonal", lambda: (lambda one: one @ one.t())(utils.parametrizations.orthogonal(layer()).weight.detach()), torch.eye(4)),
    )  # fmt: skip
    for name, right in (("l1_unstructured", 12), ("random_unstructured", 12)):
        yield ("prune.%s" % name, lambda name=name: int((getattr(prune, name)(layer(), "weight", 0.5).weight == 0).sum()), right)  # fmt: skip
    yield from (
        ("prune.l1_unstructured takes the smallest", lambda: (prune.l1_unstructured(layer(), "weight", 0.5).weight != 0).int(), (weight.abs() >= weight.abs().flatten().sort()[0][12]).int()),
        ("prune.ln_structured, removed", lambda: int((prune.remove(prune.ln_structured(layer(), "weight", 1, 2, 0), "weight").weight == 0).sum()), 6),
        ("nn.utils.skip_init", lambda: [*utils.skip_init(nn.Linear, 3, 2).weight.shape], [2, 3]),
        ("convert_conv2d_weight_memory_format", lambda: [utils.convert_conv2d_weight_memory_format(nn.Conv2d(2, 2, 3), torch.channels_last).weight.is_contiguous(memory_format=torch.channels_last)], 1),
    )  # fmt: skip
    rows = [torch.arange(1.0, 4), torch.arange(4.0, 5), torch.arange(5.0, 7)]
    yield from (
        ("rnn.unpad_sequence", lambda: rnn.unpad_sequence(rnn.pad_sequence(rows), torch.tensor([3, 1, 2])), [1, 2, 3, 4, 5, 6]),
        ("rnn.unpack_sequence", lambda: rnn.unpack_sequence(rnn.pack_sequence(rows, enforce_sorted=False)), [1, 2, 3, 4, 5, 6]),
        ("rnn.pad_sequence (left)", lambda: rnn.pad_sequence(rows, True, -1.0, "left"), [1, 2, 3, -1, -1, 4, -1, 5, 6]),
    )  # fmt: skip
    for kind, cells in (("GRU", 1), ("LSTM", 2), ("RNN", 1)):

        def as_alone(kind: str = kind, cells: int = cells) -> Any:
            net = getattr(nn, kind)(1, 3, bidirectional=True)
            ends = net(rnn.pack_sequence([one[:, None] for one in rows], enforce_sorted=False))[1]
            alone = [net(one[:, None, None])[1] for one in rows]
            return [
                (ends[part] if cells > 1 else ends)[:, number] - (each[part] if cells > 1 else each)[:, 0]
                for number, each in enumerate(alone)
                for part in range(cells)
            ]

        yield ("nn.%s of packed sentences, both ways, and of each alone" % kind, lambda work=as_alone: [one.detach() for one in work()], [0] * (18 * cells))  # fmt: skip
    yield from (
        ("nn.init.sparse_", lambda: (nn.init.sparse_(torch.ones(10, 4), 0.3) == 0).sum(0), [3] * 4),
        ("Module.load_state_dict of another order", lambda: (lambda one: [one.load_state_dict(dict(reversed([*layer().state_dict().items()]))), one.weight.detach()][1])(nn.Linear(6, 4)), many),
    )  # fmt: skip


def _attends() -> Iterator[Known]:
    """Each key is a place's own; scores of 200 leave one place to be seen."""
    places = torch.eye(4)[None, None] * 200
    values = counted(1, 1, 4, 2)
    attend = functional.scaled_dot_product_attention
    masks = {
        "truth values": torch.ones(4, 4, dtype=torch.bool).triu(),
        "numbers": torch.zeros(4, 4).masked_fill(~torch.ones(4, 4, dtype=torch.bool).triu(), -math.inf),
    }
    level = torch.zeros(1, 1, 4, 4)
    right = [values[0, 0, at:].mean(0) for at in range(4)]
    for name, mask in masks.items():
        yield ("attention with a mask of %s" % name, lambda mask=mask: attend(level, level, values, mask), right)
    yield from (
        ("causal attention of fewer queries than keys", lambda: attend(level[:, :, :2], level, values, is_causal=True), [values[0, 0, : at + 1].mean(0) for at in range(2)]),
        ("attention with a scale of its own", lambda: attend(places, torch.eye(4)[None, None], values, scale=1.0), values),
        ("attention over shared heads (enable_gqa)", lambda: attend(level.expand(1, 4, 4, 4), level.expand(1, 2, 4, 4), torch.cat([values, values + 8], 1), enable_gqa=True).mean((2, 3)), [3.5, 3.5, 11.5, 11.5]),
        ("attention with a mask for each head", lambda: attend(level.expand(1, 2, 4, 4), level.expand(1, 2, 4, 4), values.expand(1, 2, 4, 2), torch.stack([masks["truth values"], masks["truth values"].t()])[None])[0, :, 0, 0], [3, 0]),
    )  # fmt: skip
    heads = nn.MultiheadAttention(4, 2, batch_first=True)
    given = distinct(1, 4, 4).float()
    yield from (
        ("nn.MultiheadAttention, the weights that it returns", lambda: heads(given, given, given)[1].sum(2).detach(), [1] * 4),
        ("nn.MultiheadAttention, causal", lambda: (heads(given, given, given, attn_mask=torch.ones(4, 4, dtype=torch.bool).triu(1), is_causal=True, need_weights=False)[0][:, :2] - heads(given[:, :2], given[:, :2], given[:, :2], attn_mask=torch.ones(2, 2, dtype=torch.bool).triu(1))[0]).detach(), [0] * 8),
    )  # fmt: skip
