"""What torch has by several ways must be the same by each: in place, into a given tensor, for lists, in low precision over many numbers, in other memory layouts, far from zero.
All on the CPU, as known_answers.py: torch itself is what each way is compared with, so nothing had to be written down."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional

from torchtune_sys.smoke.worker.context import RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.inputs import distinct, positive
from torchtune_sys.smoke.worker.functions.known_answers import numbers_of, weights_for
from torchtune_sys.smoke.worker.functions.recipes import module_at_work, modules_of_all_kinds
from torchtune_sys.smoke.worker.functions.tried import is_lacking

_Way = Tuple[str, Callable[[], Any]]
_OFF_WAYS = 2.0**-14
"""As a share of the largest. Some ways round once more than others: 2**-20 were seen."""
_OFF_MANY = {torch.bfloat16: 2.0**-5, torch.float16: 2.0**-7}
_OFF_FAR = 2.0**-14
_SUMMED_UP, _SUMMED_IN_PLACE = 4096, 16
"""The second for what torch adds up number by number in the precision that it has (an embedding's gradient on the CPU, cpublas::axpy): four numbers of at most 1 to a place are off by
2**-8 + 2**-7 + 2**-7 in bfloat16, and an eighth of that in float16, whatever kernel adds them up."""
_DRAWN_NAMES = ("rand", "normal", "bernoulli", "multinomial", "poisson", "drop", "rrelu", "binomial", "empty", "native", "choose")
"""Parts of names of what draws, or leaves memory as it was."""
_FAR = (-100.0, -30.0, -12.0, -6.0, -4.5, 4.5, 6.0, 12.0, 30.0, 80.0)


def other_ways_agree(here: RankContext) -> None:
    """Raise StageFailed for the first that does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same_by_each_name()
        _modules_in_other_ways()


def _agree(what: str, found: Any, wanted: torch.Tensor, off: float, cause: str = "layer-wrong") -> None:
    values = numbers_of(found)
    apart = (values - wanted).abs() if values.shape == wanted.shape else torch.full((1,), math.inf)
    alike = (values == wanted) | (values.isnan() & wanted.isnan()) if values.shape == wanted.shape else apart < 0
    size = float(torch.nan_to_num(wanted, 0.0, 0.0, 0.0).abs().max()) if wanted.numel() else 0.0
    wrong = int((~alike & ~(apart <= off * max(size, 0.1))).sum())
    if wrong:
        raise StageFailed(
            cause, "%s: %d of %d numbers are others, by up to %.3g" % (what, wrong, values.numel(), float(apart.max()))
        )


def _or_nothing(work: Callable[..., Any], *given: Any) -> Optional[torch.Tensor]:
    """Return the numbers, None where this release does not have it so. Raises what a library raises in its work."""
    try:
        return numbers_of(work(*given))
    except Exception as error:
        if not is_lacking(error):
            raise
    return None


def _same_by_each_name() -> None:
    """Try whatever torch has for one or two tensors: in place, into another tensor, for a list at once."""
    one, other = positive(4, 6).float() / 4, distinct(4, 6, wide=1.0).float()
    for name in dir(torch._C._VariableFunctions):
        if name.startswith("_") or not hasattr(torch, name) or any(part in name for part in _DRAWN_NAMES):
            continue
        for more in ((), (other,), (0.25,)):
            wanted = _or_nothing(getattr(torch, name), one.clone(), *more)
            if wanted is None or not wanted.numel():
                continue
            for label, way in _ways_of(name, one, more):
                found = _or_nothing(way)
                if found is not None and found.numel() == wanted.numel():
                    _agree(label, found, wanted, _OFF_WAYS, "device-computes-wrong")


def _ways_of(name: str, one: torch.Tensor, more: Tuple[Any, ...]) -> Iterator[_Way]:
    def written(work: Callable[..., Any], held: Any) -> Any:
        work(held, *more)
        return held

    lists: Tuple[Any, ...] = tuple([each] if isinstance(each, torch.Tensor) else each for each in more)
    if hasattr(torch.Tensor, name + "_"):
        yield "Tensor.%s_" % name, lambda: written(getattr(torch.Tensor, name + "_"), one.clone())
    yield "torch.%s with out" % name, lambda: getattr(torch, name)(one, *more, out=torch.empty(0))
    if hasattr(torch, "_foreach_" + name):
        yield "torch._foreach_%s" % name, lambda: getattr(torch, "_foreach_" + name)([one.clone()], *lists)
    if hasattr(torch, "_foreach_%s_" % name):

        def of_list() -> Any:
            held = [one.clone()]
            getattr(torch, "_foreach_%s_" % name)(held, *lists)
            return held

        yield "torch._foreach_%s_" % name, of_list


def _modules_in_other_ways() -> None:
    """Compare each module in float32, in bfloat16 and with its channels last in memory with itself in float64, forward and backward."""
    for label, kind, args, options, shapes in modules_of_all_kinds():
        wanted = _or_nothing(module_at_work(kind, args, options, shapes, torch.float64, False, True))
        pictures = any(isinstance(one, tuple) and len(one) == 4 for one in shapes)
        for dtype, last, off in (
            (torch.float32, False, 2.0**-12),
            (torch.float32, True, 2.0**-12),
            (torch.bfloat16, pictures, 2.0**-4),
        ):
            if wanted is None or (last and not pictures):
                continue
            found = _or_nothing(module_at_work(kind, args, options, shapes, dtype, last, True))
            if found is not None:
                how = "%s of %s%s" % (label, str(dtype)[6:], ", channels_last" if last else "")
                _agree(how, found, wanted, off)


_STEPPERS: Tuple[Tuple[str, Dict[str, Any]], ...] = (
    ("SGD", {"momentum": 0.5, "weight_decay": 0.25}), ("SGD", {"momentum": 0.5, "nesterov": True}), ("SGD", {"maximize": True}), ("Adam", {"weight_decay": 0.25}), ("Adam", {"amsgrad": True, "betas": (0.5, 0.5)}),
    ("Adam", {"maximize": True}), ("AdamW", {"weight_decay": 0.25}), ("AdamW", {"amsgrad": True, "betas": (0.5, 0.5)}), ("RMSprop", {"momentum": 0.5, "centered": True}), ("Adagrad", {"lr_decay": 0.5, "weight_decay": 0.25}),
    ("Adadelta", {"weight_decay": 0.25}), ("Adamax", {"weight_decay": 0.25}), ("NAdam", {"weight_decay": 0.25}), ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.25}), ("RAdam", {"weight_decay": 0.25}),
    ("ASGD", {"lambd": 0.25, "t0": 1.0}), ("Rprop", {"step_sizes": (1e-6, 0.07)}), ("Adafactor", {}), ("Muon", {}),
)  # fmt: skip
_STEPPED = (
    "foreach",
    "fused",
    "differentiable",
    "a rate that is a tensor",
    "numbers that are complex",
    "its state saved and loaded",
)


def optimizers_agree(here: RankContext) -> None:
    """Compare each with itself, done in another way that is to change nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, options in _STEPPERS:
            wanted = _or_nothing(_stepped_by, kind, options, "")
            for way in _STEPPED:
                found = _or_nothing(_stepped_by, kind, options, way)
                if wanted is not None and found is not None:
                    words = ", ".join("%s %s" % pair for pair in options.items())
                    cause = "resume-differs" if "loaded" in way else "optimizer-wrong"
                    _agree("steps of %s (%s) by %s" % (kind, words, way), found, wanted, _OFF_WAYS, cause)


def _stepped_by(kind: str, options: Dict[str, Any], way: str) -> Any:
    def turned(one: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(one.view(-1, 2)) if "complex" in way else one

    def made(rate: Any) -> Any:
        groups = [{"params": [one]} for one in held]
        return getattr(torch.optim, kind)(groups, lr=rate, **options, **({way: True} if way and " " not in way else {}))

    held: List[torch.Tensor] = [nn.Parameter(turned(distinct(4, 6, seed=seed))) for seed in (37, 41)]
    held = [one.clone() for one in held] if way == "differentiable" else held
    rate: Any = torch.tensor(0.5) if "tensor" in way else 0.5
    optimizer = made(rate)
    for step in range(4):
        for group in optimizer.param_groups:
            if "tensor" in way:
                group["lr"].fill_(0.0625 / (1 + step))
            else:
                group["lr"] = 0.0625 / (1 + step)
        for number, one in enumerate(held):
            one.grad = turned(distinct(4, 6, seed=43 + 2 * step + 4 * number))
        optimizer.step()
        if "loaded" in way:
            kept = copy.deepcopy(optimizer.state_dict())
            optimizer = made(rate)
            optimizer.load_state_dict(kept)
    return [one.detach() for one in held]


def many_in_low_precision(here: RankContext) -> None:
    """Try what adds up thousands of numbers, which must not do so in eight or eleven bits; neither must what adds up their gradients."""
    wide, tall = 1 + distinct(4, _SUMMED_UP, wide=0.5), 1 + distinct(_SUMMED_UP, 4, wide=0.5)
    weight, square = 1 + distinct(_SUMMED_UP, wide=0.5), 1 + distinct(1, 4, 64, 64, wide=0.5)
    rows: Tuple[Tuple[str, Callable[..., Any], Tuple[torch.Tensor, ...]], ...] = (
        ("layer_norm", lambda a, b: functional.layer_norm(a, (_SUMMED_UP,), b), (wide, weight)),
        ("rms_norm", lambda a, b: functional.rms_norm(a, (_SUMMED_UP,), b), (wide, weight)), ("group_norm", lambda a, b: functional.group_norm(a, 2, b).detach(), (square, weight[:4])),
        ("instance_norm", functional.instance_norm, (square,)), ("batch_norm", lambda a, b: functional.batch_norm(a, None, None, b, training=True).detach(), (square, weight[:4])),
        ("softmax", lambda a: a.softmax(1) * _SUMMED_UP, (wide,)), ("log_softmax", lambda a: a.log_softmax(1), (wide,)), ("sum", lambda a: a.sum(1), (wide,)), ("mean", lambda a: a.mean(1), (wide,)),
        ("var", lambda a: a.var(1), (wide,)), ("std", lambda a: a.std(1), (wide,)), ("norm", lambda a: a.norm(dim=1), (wide,)), ("logsumexp", lambda a: a.logsumexp(1), (wide,)),
        ("cross_entropy", lambda a: functional.cross_entropy(a, torch.tensor([5, 0, 77, 4095])), (wide,)), ("mse_loss", lambda a: functional.mse_loss(a, a.detach() * 0), (wide,)),
        ("adaptive_avg_pool2d", lambda a: functional.adaptive_avg_pool2d(a, 1), (square,)), ("linear", lambda a, b: functional.linear(a, b[None]), (wide, weight)),
        ("linear with a bias, of many rows", lambda a, b: functional.linear(a, torch.eye(4, dtype=a.dtype), b), (tall, weight[:4])), ("normalize", lambda a: functional.normalize(a) * 64, (wide,)),
        ("cosine_similarity", lambda a, b: functional.cosine_similarity(a, b[None]), (wide, weight)), ("cumsum", lambda a: a.cumsum(1)[:, -1], (wide,)), ("sum of rows", lambda a: a.sum(0), (tall,)),
        ("embedding", lambda a: functional.embedding(torch.arange(_SUMMED_IN_PLACE) % 4, a[:, :4]), (wide,)), ("index_add", lambda a, b: torch.zeros(4, 4).to(a).index_add(0, torch.arange(_SUMMED_UP) % 4, a), (tall, tall)),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype, off in _OFF_MANY.items():
            for name, work, given in rows:
                low, sizes = [one.to(dtype) for one in given], []  # type: List[torch.Tensor], List[float]
                wanted, found = (
                    _or_nothing(_out_and_back, work, [one.to(kind) for one in low], sizes) for kind in (torch.float64, dtype)
                )
                if wanted is not None and found is not None:
                    _agree("%s of %d numbers of %s" % (name, _SUMMED_UP, str(dtype)[6:]), found, wanted, off)


def _out_and_back(work: Callable[..., Any], given: List[torch.Tensor], sizes: List[float]) -> List[torch.Tensor]:
    """Return what comes out, and the gradient of each that has one, as shares of the largest elements that the first of some calls gave: ``sizes``, empty before that one."""
    held = [one.clone().requires_grad_() for one in given]
    found = work(*held)
    parts = [found.detach()]
    if found.requires_grad:  # torch keeps the figures of some norms in the low precision for the way back
        found.backward(weights_for(found.numel()).view(found.shape).to(found.dtype))
        parts += [one.grad for one in held if one.grad is not None]
    sizes.extend(max(float(one.abs().max()), 1.0) for one in parts[len(sizes) :])
    return [one / size for one, size in zip(parts, sizes)]


def _logistic_of(one: float) -> float:
    return 1 / (1 + math.exp(-one)) if one > 0 else math.exp(one) / (1 + math.exp(one))


def _raised(one: float) -> float:
    return one + math.log1p(math.exp(-one)) if one > 0 else math.log1p(math.exp(one))


def far_from_zero(here: RankContext) -> None:
    """Where an activation has become flat, or straight, or its power has overflowed."""
    rows: Tuple[Tuple[str, Callable[[torch.Tensor], torch.Tensor], Callable[[float], float]], ...] = (
        ("torch.tanh", torch.tanh, math.tanh), ("torch.sigmoid", torch.sigmoid, _logistic_of), ("softplus", functional.softplus, _raised), ("silu", functional.silu, lambda one: one * _logistic_of(one)),
        ("gelu", functional.gelu, lambda one: one * math.erfc(-one / math.sqrt(2)) / 2), ("mish", functional.mish, lambda one: one * math.tanh(_raised(one))), ("logsigmoid", functional.logsigmoid, lambda one: -_raised(-one)),
        ("elu", functional.elu, lambda one: one if one > 0 else math.expm1(one)), ("celu", lambda one: functional.celu(one, 2.0), lambda one: one if one > 0 else 2 * math.expm1(one / 2)), ("softsign", functional.softsign, lambda one: one / (1 + abs(one))),
        ("selu", functional.selu, lambda one: 1.0507009873554805 * (one if one > 0 else 1.6732632423543772 * math.expm1(one))), ("tanhshrink", functional.tanhshrink, lambda one: one - math.tanh(one)),
        ("hardswish", functional.hardswish, lambda one: one * min(max(one + 3, 0), 6) / 6), ("hardsigmoid", functional.hardsigmoid, lambda one: min(max(one + 3, 0), 6) / 6), ("relu6", functional.relu6, lambda one: min(max(one, 0), 6)),
        ("hardtanh", functional.hardtanh, lambda one: min(max(one, -1), 1)), ("torch.erf", torch.erf, math.erf), ("torch.atan", torch.atan, math.atan), ("torch.asinh", torch.asinh, math.asinh), ("torch.expm1 of less", lambda one: torch.expm1(-one.abs()), lambda one: math.expm1(-abs(one))),
        ("torch.log1p", lambda one: torch.log1p(one.abs()), lambda one: math.log1p(abs(one))), ("logaddexp", lambda one: torch.logaddexp(one, -one), lambda one: abs(one) + math.log1p(math.exp(-2 * abs(one)))), ("torch.sinc", torch.sinc, lambda one: math.sin(math.pi * one) / math.pi / one),
    )  # fmt: skip
    given = torch.tensor(_FAR * 4, dtype=torch.float64)  # more than a vector register holds, and what is left over
    for name, work, formula in rows:
        wanted = torch.tensor([formula(one) for one in given.tolist()], dtype=torch.float64)
        for dtype in (torch.float32, torch.float64):
            found = _or_nothing(work, given.to(dtype))
            if found is not None:
                off = (found - wanted).abs() - _OFF_FAR * wanted.abs()
                if not float(off.max()) <= 1e-6:
                    at = int(off.argmax())
                    words = (name, float(given[at]), str(dtype)[6:], float(found[at]), float(wanted[at]))
                    raise StageFailed("layer-wrong", "%s of %g in %s is %.9g, where %.9g is right" % words)
