"""What torch is made of beside functions, with the options that it has: modules, optimizers, schedules, distributions, what handles parameters and data, but for what a stage of
its own tries (clipping of norms, distributed samplers). Each recipe gives numbers, of which answers_of_options.py knows the sum."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch import distributions, nn
from torch.optim import lr_scheduler
from torch.utils import data

from torchtune_sys.smoke.worker.functions.inputs import distinct

Recipe = Tuple[str, str, Callable[[], Any]]
"""Name, the cause where it is wrong, and what is done."""
_FINE = torch.float64
_STEPS_OF_RECIPE, _EPOCHS_OF_RECIPE = 5, 12


def recipes() -> Iterator[Recipe]:
    """Yield all of them."""
    for part in (
        _modules_alone,
        _optimizers_of_all_kinds,
        _sparse_gradients,
        _rates_of_schedules,
        _distributions,
        _of_parameters,
        _of_data,
    ):
        yield from part()


def _named(kind: str, args: Tuple[Any, ...], options: Dict[str, Any]) -> str:
    words = [*map(str, args), *("%s=%s" % (name, getattr(value, "__name__", value)) for name, value in options.items())]
    return "%s(%s)" % (kind, ",".join(words).replace(" ", "").replace("torch.", ""))


def _filled_with_numbers(module: nn.Module, dtype: torch.dtype = _FINE) -> nn.Module:
    """Give it weights that no generator has drawn."""
    with torch.no_grad():
        for number, value in enumerate(module.parameters()):
            value.copy_(distinct(*value.shape, seed=11 + 2 * number, wide=0.5))
    return module.to(dtype)


def _forward_and_back(module: nn.Module, given: List[torch.Tensor]) -> List[torch.Tensor]:
    """Return what comes out, and all gradients."""
    found = module(*given)
    first = found[0] if isinstance(found, tuple) else found
    held = [*(one for one in given if one.requires_grad), *module.parameters()]
    if not first.requires_grad:
        return [first]
    shares = distinct(first.numel(), seed=43).view(first.shape) if first.dim() else first.new_ones(())
    first.backward(shares.to(first.dtype))
    return [first.detach(), *(one.new_zeros(1) if one.grad is None else one.grad for one in held), *module.buffers()]


def _modules_alone() -> Iterator[Recipe]:
    for name, kind, args, options, shapes in modules_of_all_kinds():
        yield name, "layer-wrong", module_at_work(kind, args, options, shapes)


def modules_of_all_kinds() -> Iterator[Tuple[str, str, Tuple[Any, ...], Dict[str, Any], Tuple[Any, ...]]]:
    """Yield name, kind, arguments and options of each, and what it is given: shapes, or tensors."""
    rows, line, picture, room = (5, 12), (2, 4, 9), (2, 4, 6, 5), (1, 2, 4, 4, 3)
    whole, signs = torch.tensor([3, 0, 5, 5, 1]), torch.tensor([1.0, -1, 1, 1, -1], dtype=_FINE)
    table: Tuple[Tuple[str, Tuple[Any, ...], Dict[str, Any], Tuple[Any, ...]], ...] = (
        *((kind, (), {}, (rows,)) for kind in ["CELU", "ELU", "SELU", "GELU", "SiLU", "Mish", "Softplus", "Softsign", "Tanhshrink", "LogSigmoid", "Hardswish", "Hardsigmoid", "Hardtanh", "Hardshrink", "Softshrink", "ReLU", "ReLU6", "Sigmoid", "Tanh", "LeakyReLU", "PReLU", "GLU", "Identity", "Flatten"]),
        ("CELU", (0.5,), {}, (rows,)), ("ELU", (0.5,), {}, (rows,)), ("Softplus", (2.0, 1.0), {}, (rows,)), ("Hardtanh", (-0.5, 0.25), {}, (rows,)), ("Threshold", (0.25, 3.0), {}, (rows,)),
        ("Hardshrink", (0.75,), {}, (rows,)), ("Softshrink", (0.75,), {}, (rows,)), ("LeakyReLU", (0.25,), {}, (rows,)), ("PReLU", (12,), {}, (rows,)), ("GELU", (), {"approximate": "tanh"}, (rows,)),
        ("Softmax", (1,), {}, (rows,)), ("Softmin", (1,), {}, (rows,)), ("LogSoftmax", (1,), {}, (rows,)), ("Softmax2d", (), {}, (picture,)),
        ("Linear", (12, 5), {}, (rows,)), ("Linear", (12, 5), {"bias": False}, (rows,)), ("Bilinear", (12, 12, 3), {}, (rows, rows)),
        ("LayerNorm", (12,), {}, (rows,)), ("LayerNorm", ((6, 5),), {"eps": 0.5}, (picture,)), ("RMSNorm", (12,), {"eps": 0.5}, (rows,)), ("GroupNorm", (2, 4), {}, (picture,)),
        ("BatchNorm1d", (12,), {}, (rows,)), ("BatchNorm1d", (4,), {"momentum": None}, (line,)), ("BatchNorm2d", (4,), {"momentum": 0.5, "eps": 0.5}, (picture,)), ("BatchNorm3d", (2,), {}, (room,)),
        ("BatchNorm2d", (4,), {"track_running_stats": False}, (picture,)), ("BatchNorm2d", (4,), {"affine": False}, (picture,)), ("InstanceNorm1d", (4,), {"affine": True}, (line,)),
        ("InstanceNorm2d", (4,), {"track_running_stats": True}, (picture,)), ("InstanceNorm3d", (2,), {}, (room,)), ("LocalResponseNorm", (2,), {}, (picture,)),
        ("Conv1d", (4, 3, 3), {}, (line,)), ("Conv1d", (4, 4, 3), {"padding": 2, "dilation": 2, "groups": 2}, (line,)), ("Conv2d", (4, 6, 3), {"padding": "same"}, (picture,)),
        ("Conv2d", (4, 4, 3), {"groups": 4, "stride": 2}, (picture,)), ("Conv2d", (4, 2, (3, 2)), {"padding": (1, 0), "padding_mode": "circular"}, (picture,)),
        ("Conv2d", (4, 2, 3), {"padding": 1, "padding_mode": "reflect"}, (picture,)), ("Conv3d", (2, 2, 2), {"padding": 1}, (room,)), ("ConvTranspose1d", (4, 3, 3), {"stride": 2}, (line,)),
        ("ConvTranspose2d", (4, 4, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}, (picture,)), ("ConvTranspose3d", (2, 1, 2), {}, (room,)),
        ("MaxPool1d", (3,), {"stride": 2, "padding": 1}, (line,)), ("MaxPool2d", (3,), {"ceil_mode": True}, (picture,)), ("MaxPool2d", (2,), {"dilation": 2, "stride": 1}, (picture,)), ("MaxPool3d", (2,), {}, (room,)),
        ("AvgPool1d", (3,), {"padding": 1, "count_include_pad": False}, (line,)), ("AvgPool2d", (2,), {"divisor_override": 3}, (picture,)), ("AvgPool2d", (3,), {"ceil_mode": True}, (picture,)), ("AvgPool3d", (2,), {}, (room,)),
        ("LPPool1d", (2, 3), {}, (line,)), ("LPPool2d", (2, 2), {}, (picture,)), ("AdaptiveAvgPool1d", (4,), {}, (line,)), ("AdaptiveAvgPool2d", ((4, 3),), {}, (picture,)), ("AdaptiveAvgPool3d", (2,), {}, (room,)),
        ("AdaptiveMaxPool1d", (4,), {}, (line,)), ("AdaptiveMaxPool2d", ((4, 3),), {}, (picture,)), ("AdaptiveMaxPool3d", (2,), {}, (room,)),
        *((kind, (2,), {}, (line,)) for kind in ("ReflectionPad1d", "ReplicationPad1d", "ZeroPad1d", "CircularPad1d")),
        ("ConstantPad1d", ((1, 2), 0.5), {}, (line,)), ("ConstantPad2d", (1, 0.5), {}, (picture,)), ("ReflectionPad2d", ((1, 2, 0, 1),), {}, (picture,)), ("ReplicationPad2d", (2,), {}, (picture,)),
        ("ZeroPad2d", (2,), {}, (picture,)), ("CircularPad2d", (2,), {}, (picture,)), ("ReplicationPad3d", (1,), {}, (room,)), ("ConstantPad3d", (1, 0.5), {}, (room,)), ("ReflectionPad3d", (1,), {}, (room,)),
        ("PixelShuffle", (2,), {}, (picture,)), ("PixelUnshuffle", (2,), {}, ((1, 2, 4, 4),)), ("ChannelShuffle", (2,), {}, (picture,)), ("Unfold", (2,), {"stride": 2}, (picture,)), ("Fold", ((4, 6), 2), {"stride": 2}, ((1, 4, 6),)),
        ("Upsample", (), {"scale_factor": 2}, (picture,)), ("Upsample", (9,), {"mode": "linear"}, (line,)), ("Upsample", ((8, 9),), {"mode": "bicubic"}, (picture,)),
        ("Upsample", ((8, 9),), {"mode": "bilinear", "align_corners": True}, (picture,)), ("Upsample", (), {"scale_factor": 2, "mode": "trilinear"}, (room,)), ("Unflatten", (1, (3, 4)), {}, (rows,)),
        ("CosineSimilarity", (), {}, (rows, rows)), ("PairwiseDistance", (1.0,), {}, (rows, rows)), ("RNN", (9, 3), {"nonlinearity": "relu"}, (line,)), ("GRU", (9, 3), {"num_layers": 2, "bias": False}, (line,)),
        ("LSTM", (9, 3), {"proj_size": 2, "bidirectional": True}, (line,)), ("RNNCell", (12, 3), {}, (rows,)), ("GRUCell", (12, 3), {}, (rows,)), ("LSTMCell", (12, 3), {}, (rows,)),
        ("TransformerEncoderLayer", (12, 3, 8), {"dropout": 0.0, "norm_first": True}, ((2, 5, 12),)), ("TransformerDecoderLayer", (12, 3, 8), {"dropout": 0.0, "activation": "gelu"}, ((2, 5, 12), (2, 5, 12))),
        ("MultiheadAttention", (12, 3), {"bias": False}, ((2, 5, 12),) * 3), ("MultiheadAttention", (12, 3), {"kdim": 6, "vdim": 4, "add_bias_kv": True}, ((2, 5, 12), (2, 5, 6), (2, 5, 4))),
        *((kind, (), options, (rows, rows)) for kind in ["L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "KLDivLoss", "PoissonNLLLoss"] for options in ({}, {"reduction": "sum"})),
        ("SmoothL1Loss", (), {"beta": 0.25}, (rows, rows)), ("HuberLoss", (), {"delta": 0.25}, (rows, rows)), ("KLDivLoss", (), {"log_target": True}, (rows, rows)), ("TripletMarginLoss", (), {"swap": True, "margin": 0.5}, (rows, rows, rows)),
        *((kind, (), options, (rows, whole)) for kind in ["CrossEntropyLoss", "MultiMarginLoss", "NLLLoss"] for options in ({}, {"reduction": "sum"}, {"reduction": "none"})),
        ("CrossEntropyLoss", (), {"label_smoothing": 0.25, "ignore_index": 5}, (rows, whole)), ("CrossEntropyLoss", (), {"reduction": "mean"}, (rows, rows)), ("MultiMarginLoss", (), {"p": 2, "margin": 0.5}, (rows, whole)),
        ("CosineEmbeddingLoss", (0.25,), {}, (rows, rows, signs)), ("MarginRankingLoss", (0.25,), {}, ((5,), (5,), signs)), ("HingeEmbeddingLoss", (0.5,), {}, ((5,), signs)), ("SoftMarginLoss", (), {}, ((5,), signs)),
        ("BCEWithLogitsLoss", (), {"pos_weight": signs.abs() * 2}, ((3, 5), signs.expand(3, 5) / 2 + 0.5)), ("MultiLabelSoftMarginLoss", (), {}, (rows, rows)), ("GaussianNLLLoss", (), {"full": True}, ((5,), (5,), signs.abs())),
        ("Embedding", (6, 3), {"padding_idx": 5}, (whole,)), ("Embedding", (6, 3), {"scale_grad_by_freq": True}, (whole,)), ("EmbeddingBag", (6, 3), {"mode": "max"}, (whole, torch.tensor([0, 2]))),
    )  # fmt: skip
    for kind, args, options, shapes in table:
        yield _named("nn." + kind, args, options), kind, args, options, shapes


def module_at_work(
    kind: str,
    args: Tuple[Any, ...],
    options: Dict[str, Any],
    shapes: Tuple[Any, ...],
    dtype: torch.dtype = _FINE,
    last: bool = False,
    rising: bool = False,
) -> Callable[[], Any]:
    """``last``: pictures and weights have their channels last in memory. ``rising``: each channel is given larger numbers than the one before, which bfloat16 holds."""

    def laid_out(one: torch.Tensor) -> torch.Tensor:
        one = (
            (one + torch.arange(one.shape[1]).view([-1] + [1] * (one.dim() - 2))).bfloat16() if rising and one.dim() > 2 else one
        )
        return one.to(dtype).contiguous(memory_format=torch.channels_last) if last and one.dim() == 4 else one.to(dtype)

    def work() -> Any:
        module = _filled_with_numbers(getattr(nn, kind)(*args, **options), dtype)
        given = [
            laid_out(distinct(*one, seed=41 + 2 * number)).requires_grad_()
            if isinstance(one, tuple)
            else one.to(dtype if one.is_floating_point() else one.dtype)
            for number, one in enumerate(shapes)
        ]
        return _forward_and_back(module.to(memory_format=torch.channels_last) if last else module, given)

    return work


def _optimizers_of_all_kinds() -> Iterator[Recipe]:
    """Yield each with each of its options."""
    for kind, options in (
        ("SGD", {"momentum": 0.75, "dampening": 0.25}), ("SGD", {"maximize": True}), ("SGD", {"weight_decay": 0.25}), ("Adam", {"maximize": True}), ("Adam", {"eps": 0.5}), ("Adam", {"betas": (0.5, 0.75)}),
        ("AdamW", {"amsgrad": True, "betas": (0.5, 0.5)}), ("AdamW", {"maximize": True}), ("AdamW", {"weight_decay": 0.0}), ("RMSprop", {"momentum": 0.75}), ("RMSprop", {"centered": True}), ("RMSprop", {"alpha": 0.5, "weight_decay": 0.25}),
        ("Adagrad", {"lr_decay": 0.5}), ("Adagrad", {"initial_accumulator_value": 0.5, "weight_decay": 0.25}), ("Adadelta", {"rho": 0.5, "weight_decay": 0.25}), ("Adamax", {"weight_decay": 0.25}), ("Adamax", {"betas": (0.5, 0.75)}),
        ("NAdam", {"weight_decay": 0.25}), ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.25}), ("NAdam", {"momentum_decay": 0.5}), ("RAdam", {"weight_decay": 0.25}), ("RAdam", {"decoupled_weight_decay": True, "weight_decay": 0.25}),
        ("ASGD", {}), ("ASGD", {"lambd": 0.25, "t0": 1.0}), ("Rprop", {}), ("Rprop", {"etas": (0.25, 1.5)}), ("Adafactor", {}), ("Adafactor", {"weight_decay": 0.25}), ("Muon", {}), ("Muon", {"momentum": 0.5, "nesterov": False}),
        ("LBFGS", {"max_iter": 4}), ("LBFGS", {"max_iter": 4, "line_search_fn": "strong_wolfe", "history_size": 3}),
    ):  # fmt: skip
        given = {"lr": 0.0625, **options}
        yield _named("optim." + kind, (), given), "optimizer-wrong", _steps_of(kind, given)


def _steps_of(kind: str, options: Dict[str, Any]) -> Callable[[], Any]:
    def work() -> Any:
        held = [nn.Parameter(distinct(4, 5, seed=seed)) for seed in (37, 41)]
        optimizer: Any = getattr(torch.optim, kind)(held, **options)
        for step in range(_STEPS_OF_RECIPE):

            def closure(step: int = step) -> torch.Tensor:
                for one in held:
                    one.grad = None  # zero_grad is the stage optimizer's
                loss = sum((one * one * distinct(4, 5, seed=43 + 2 * step).abs()).sum() for one in held)
                loss.backward()
                return loss

            optimizer.step(closure)
        return [*(one.detach() for one in held)]

    return work


def _sparse_gradients() -> Iterator[Recipe]:
    """Words that come twice: what two rows of a sparse gradient say of one of them is to be added."""
    words, starts = torch.tensor([3, 0, 5, 3, 1, 3]), torch.tensor([0, 2, 3])
    layers: Tuple[Tuple[str, Callable[[], nn.Module], Tuple[Any, ...]], ...] = (
        ("nn.Embedding(sparse)", lambda: nn.Embedding(6, 3, sparse=True), (words,)),
        ("nn.EmbeddingBag(sparse)", lambda: nn.EmbeddingBag(6, 3, mode="sum", sparse=True), (words, starts)),
    )
    steps: Tuple[Tuple[str, Dict[str, Any]], ...] = (("SparseAdam", {}), ("SGD", {}), ("SGD", {"momentum": 0.5}), ("Adagrad", {}))
    for name, make, given in layers:
        yield name, "layer-wrong", functools.partial(_forward_and_back_sparsely, make, given)
        for kind, options in steps:
            yield (
                "%s of %s" % (_named("optim." + kind, (), options), name),
                "optimizer-wrong",
                functools.partial(_steps_sparsely, make, given, kind, options),
            )


def _forward_and_back_sparsely(make: Callable[[], nn.Module], given: Tuple[Any, ...]) -> Any:
    found, slope = _forward_and_back(_filled_with_numbers(make()), [*given])
    return [found, slope.to_dense()]


def _steps_sparsely(make: Callable[[], nn.Module], given: Tuple[Any, ...], kind: str, options: Dict[str, Any]) -> Any:
    layer = _filled_with_numbers(make())
    optimizer: Any = getattr(torch.optim, kind)(layer.parameters(), lr=0.0625, **options)
    for _ in range(_STEPS_OF_RECIPE):
        layer.zero_grad()
        (layer(*given) ** 2).sum().backward()
        optimizer.step()
    return [one.detach() for one in layer.parameters()]


def _rates_of_schedules() -> Iterator[Recipe]:
    kinds: Any = lr_scheduler
    for name, schedule in (
        ("ConstantLR(0.25,4)", lambda one: kinds.ConstantLR(one, 0.25, 4)),
        ("MultiplicativeLR", lambda one: kinds.MultiplicativeLR(one, lambda epoch: 1 - 0.05 * epoch)),
        ("CyclicLR(triangular2)", lambda one: kinds.CyclicLR(one, 0.25, 1.0, 3, 2, mode="triangular2", cycle_momentum=False)),
        ("CyclicLR(exp_range)", lambda one: kinds.CyclicLR(one, 0.25, 1.0, 3, mode="exp_range", gamma=0.75)),
        ("OneCycleLR(linear)", lambda one: kinds.OneCycleLR(one, 2.0, total_steps=20, anneal_strategy="linear")),
        ("OneCycleLR(three_phase)", lambda one: kinds.OneCycleLR(one, 2.0, epochs=5, steps_per_epoch=4, three_phase=True, pct_start=0.25)),
        ("CosineAnnealingWarmRestarts(T_mult)", lambda one: kinds.CosineAnnealingWarmRestarts(one, 2, T_mult=2, eta_min=0.125)),
        ("CosineAnnealingLR(beyond)", lambda one: kinds.CosineAnnealingLR(one, 5, eta_min=0.25)),
        ("LinearLR(down)", lambda one: kinds.LinearLR(one, 1.0, 0.25, 4)), ("PolynomialLR", lambda one: kinds.PolynomialLR(one, 8, power=0.5)), ("StepLR", lambda one: kinds.StepLR(one, 4, gamma=0.25)),
        ("ChainedScheduler", lambda one: kinds.ChainedScheduler([kinds.ConstantLR(one, 0.25, 4), kinds.ExponentialLR(one, 0.75)])),
        ("SequentialLR(three)", lambda one: kinds.SequentialLR(one, [kinds.ConstantLR(one, 0.5, 2), kinds.ExponentialLR(one, 0.75), kinds.StepLR(one, 2)], [3, 7])),
        ("SWALR(cos)", lambda one: torch.optim.swa_utils.SWALR(one, 0.125, anneal_epochs=5)), ("SWALR(linear)", lambda one: torch.optim.swa_utils.SWALR(one, 0.125, anneal_epochs=5, anneal_strategy="linear")),
        ("ReduceLROnPlateau(max)", lambda one: kinds.ReduceLROnPlateau(one, "max", 0.5, 1, cooldown=1, min_lr=0.125)),
        ("ReduceLROnPlateau(abs)", lambda one: kinds.ReduceLROnPlateau(one, "min", 0.5, 1, threshold=0.25, threshold_mode="abs")),
    ):  # fmt: skip
        yield "lr_scheduler." + name, "schedule-wrong", _rates_by(schedule)


def _rates_by(schedule: Callable[[Any], Any]) -> Callable[[], Any]:
    def work() -> Any:
        groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in (1.0, 0.5)]
        optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.5)
        moved, found = schedule(optimizer), []
        for epoch in range(_EPOCHS_OF_RECIPE):
            found += [group[key] for group in optimizer.param_groups for key in ("lr", "momentum")]
            optimizer.step()
            moved.step(*([(epoch * 5 % 7) / 4] if isinstance(moved, lr_scheduler.ReduceLROnPlateau) else []))
        return [float(one) for one in found]

    return work


def _distributions() -> Iterator[Recipe]:
    one, two = torch.tensor([0.5, 1.25], dtype=_FINE), torch.tensor([1.5, 0.75], dtype=_FINE)
    shares, whole = torch.tensor([0.25, 0.75], dtype=_FINE), torch.tensor([1.0, 2.0], dtype=_FINE)
    many, square = torch.tensor([[0.25, 0.5, 0.25]], dtype=_FINE), torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=_FINE)
    for kind, args, value in (
        ("Normal", (one, two), two), ("LogNormal", (one, two), two), ("Laplace", (one, two), two), ("Cauchy", (one, two), two), ("Gumbel", (one, two), two), ("HalfNormal", (one,), two), ("HalfCauchy", (one,), two),
        ("Exponential", (one,), two), ("Gamma", (one, two), two), ("Beta", (one, two), shares), ("Chi2", (one,), two), ("StudentT", (two * 4, one, two), two), ("FisherSnedecor", (two, two * 5), two), ("Pareto", (one, two), two + 1),
        ("Weibull", (one, two), two), ("Kumaraswamy", (one, two), shares), ("Uniform", (-one, two), shares / 2), ("VonMises", (one, two), two), ("InverseGamma", (two * 3, one), two), ("Bernoulli", (shares,), whole - 1),
        ("Binomial", (5, shares), whole), ("Geometric", (shares,), whole), ("NegativeBinomial", (5, shares), whole), ("Poisson", (two,), whole), ("Categorical", (many,), torch.tensor([1])), ("OneHotCategorical", (many,), torch.eye(3, dtype=_FINE)[:1]),
        ("Multinomial", (4, many[0]), torch.tensor([1.0, 2.0, 1.0], dtype=_FINE)), ("Dirichlet", (two,), shares),
        ("MultivariateNormal", (one, square), two), ("ContinuousBernoulli", (shares,), shares), ("LogisticNormal", (one, two), torch.tensor([0.25, 0.25, 0.5], dtype=_FINE)), ("RelaxedBernoulli", (one[0], shares), shares),
    ):  # fmt: skip
        yield "distributions.%s" % kind, "device-computes-wrong", _odds_of(kind, args, value)
    normal, other = distributions.Normal(one, two), distributions.Normal(two, one)
    yield "distributions.kl_divergence(Normal)", "device-computes-wrong", lambda: distributions.kl_divergence(normal, other)
    yield (
        "distributions.kl_divergence(Categorical)",
        "device-computes-wrong",
        lambda: distributions.kl_divergence(distributions.Categorical(many), distributions.Categorical(many.roll(1))),
    )


def _odds_of(kind: str, args: Tuple[Any, ...], value: torch.Tensor) -> Callable[[], Any]:
    def work() -> Any:
        made = getattr(distributions, kind)(*args)
        found = [made.log_prob(value)]
        for name in ("mean", "variance", "entropy", "cdf", "icdf"):
            try:
                part = getattr(made, name)
                found.append(
                    part() if name == "entropy" else part(value) if name == "cdf" else part(value / 4) if name == "icdf" else part
                )
            except (NotImplementedError, AttributeError, ValueError):  # not every one has each
                found.append(torch.zeros(1, dtype=_FINE))
        return [torch.nan_to_num(one.double().reshape(-1), posinf=9.0) for one in found]

    return work


def _with_gradients() -> List[nn.Parameter]:
    held = [nn.Parameter(distinct(3, 4, seed=seed)) for seed in (37, 41)]
    for number, one in enumerate(held):
        one.grad = distinct(3, 4, seed=43 + number)
    return held


def _of_parameters() -> Iterator[Recipe]:
    utils: Any = nn.utils
    rows = [distinct(count, 2, seed=37 + count) for count in (4, 3, 1)]
    yield "nn.utils.parameters_to_vector", "layer-wrong", lambda: utils.parameters_to_vector(_with_gradients()).detach()
    yield "nn.utils.rnn.pad_sequence", "layer-wrong", lambda: utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0.5)
    yield "nn.utils.rnn.pack_sequence", "layer-wrong", lambda: [*utils.rnn.pack_sequence(rows)[:2]]
    yield "nn.utils.rnn.pad_packed_sequence", "layer-wrong", lambda: [*utils.rnn.pad_packed_sequence(utils.rnn.pack_sequence(rows), padding_value=0.5)]  # fmt: skip
    line = distinct(3, 4, 5)
    yield (
        "an LSTM of packed sentences",
        "layer-wrong",
        lambda: _filled_with_numbers(nn.LSTM(2, 3))(utils.rnn.pack_sequence(rows))[0][0].detach(),
    )
    yield (
        "nn.utils.weight_norm",
        "layer-wrong",
        lambda: _forward_and_back(_filled_with_numbers(utils.parametrizations.weight_norm(nn.Linear(5, 3))), [line]),
    )
    yield "nn.utils.fuse_conv_bn_eval", "layer-wrong", _fused
    yield (
        "nn.Sequential",
        "layer-wrong",
        lambda: _forward_and_back(_filled_with_numbers(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))), [line]),
    )
    for name, args in (("constant_", (0.5,)), ("ones_", ()), ("zeros_", ()), ("eye_", ())):
        yield "nn.init." + name, "layer-wrong", functools.partial(_begun_as, name, args)
    yield "nn.init.dirac_", "layer-wrong", lambda: nn.init.dirac_(distinct(4, 4, 3))
    yield (
        "nn.init.orthogonal_",
        "layer-wrong",
        lambda: [(one @ one.t()).round(decimals=6) for one in [nn.init.orthogonal_(distinct(4, 6))]],
    )
    for name, options in (("relu", ()), ("leaky_relu", (0.5,)), ("tanh", ()), ("linear", ()), ("selu", ())):
        yield (
            "nn.init.calculate_gain(%s)" % name,
            "layer-wrong",
            functools.partial(nn.init.calculate_gain, name, *options),
        )
    yield (
        "autograd.functional.jacobian",
        "autograd-wrong",
        lambda: torch.autograd.functional.jacobian(lambda one: one**3 * one.sum(), distinct(4)),
    )
    yield (
        "autograd.functional.hessian",
        "autograd-wrong",
        lambda: torch.autograd.functional.hessian(lambda one: (one**3).sum() * one[0], distinct(4)),
    )


def _begun_as(name: str, args: Tuple[Any, ...]) -> Any:
    return getattr(nn.init, name)(distinct(4, 4), *args)


def _fused() -> Any:
    convolution, norm = _filled_with_numbers(nn.Conv2d(2, 3, 2)), _filled_with_numbers(nn.BatchNorm2d(3))
    norm.running_mean.copy_(distinct(3))
    fused: Any = nn.utils.fusion.fuse_conv_bn_eval
    return fused(convolution.eval(), norm.eval())(distinct(1, 2, 4, 4)).detach()


def _of_data() -> Iterator[Recipe]:
    numbers = data.TensorDataset(torch.arange(10), torch.arange(10) * 3 % 7)
    corrupts = "dataloader-corrupts"
    yield "utils.data.TensorDataset", corrupts, lambda: [len(numbers), *numbers[7]]
    yield "utils.data.Subset", corrupts, lambda: [[*one] for one in map(data.Subset(numbers, [7, 2, 9]).__getitem__, range(3))]
    yield (
        "utils.data.ConcatDataset",
        corrupts,
        lambda: [[*one] for one in map(data.ConcatDataset([numbers, numbers]).__getitem__, (3, 9, 10, 19, -1))],
    )
    yield "utils.data.ChainDataset", corrupts, lambda: [*itertools.chain(data.ChainDataset([_Counted(), _Counted()]))]
    yield (
        "utils.data.default_collate",
        corrupts,
        lambda: [*data.default_collate([{"a": (1, 2.5), "b": torch.ones(2) * at} for at in range(3)])["b"]],
    )
    yield "utils.data.BatchSampler", corrupts, lambda: [*data.BatchSampler(data.SequentialSampler(range(10)), 4, False)]
    yield "utils.data.BatchSampler(drop_last)", corrupts, lambda: [*data.BatchSampler(data.SequentialSampler(range(10)), 4, True)]
    yield (
        "utils.data.RandomSampler",
        corrupts,
        lambda: sorted(data.RandomSampler(range(10), generator=torch.Generator().manual_seed(3))),
    )
    yield "utils.data.SubsetRandomSampler", corrupts, lambda: sorted(data.SubsetRandomSampler([4, 2, 9]))
    yield (
        "utils.data.random_split",
        corrupts,
        lambda: sorted(
            int(one[0]) for part in data.random_split(numbers, [3, 7], torch.Generator().manual_seed(3)) for one in part
        ),
    )
    yield "a DataLoader in batches", corrupts, lambda: [[*one] for one in data.DataLoader(numbers, batch_size=4)]
    yield (
        "a DataLoader with collate_fn",
        corrupts,
        lambda: [*data.DataLoader(numbers, batch_size=3, drop_last=True, collate_fn=lambda rows: len(rows) * int(rows[0][1]))],
    )


class _Counted(data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))
