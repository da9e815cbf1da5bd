"""What torch has under several names is one thing: all of them, found by looking, give the same."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Iterator, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.operators import distinct

_NEAR = 1e-5
"""As a share of the largest element."""
_LEFT_OUT = (
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "drop",
    "rrelu",
    "gumbel",
    "fractional",
    "empty",
    "resize",
    "where",
    "q_",
    "smm",
    "spa",
    "stft",
    "strided",
    "int_repr",
    "lu_",
    "rmqr",
    "rgqr",
    "put",
)
"""Parts of names: of what draws or leaves memory as it was, where the first argument is another, and what is not for numbers laid out as here."""
_SAME = (
    "arccos acos, arccosh acosh, arcsin asin, arcsinh asinh, arctan atan, arctanh atanh, arctan2 atan2, absolute abs, negative neg, multiply mul, "
    "subtract sub, divide div, true_divide div, clip clamp, greater gt, greater_equal ge, less lt, less_equal le, not_equal ne, fix trunc, "
    "concat cat, concatenate cat, moveaxis movedim, swapaxes transpose, swapdims transpose, vstack row_stack, det linalg_det, inverse linalg_inv"
)
_Arguments = Tuple[torch.Tensor, Tuple[Any, ...]]


def spellings_agree(_here: RankContext) -> None:
    """Check torch's functions beside the methods of tensors, those that write in place, and names that stand for others. Raises StageFailed for the first that is unlike."""
    trials = list(_arguments_to_try())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are to go
        for name, first, others in _groups():
            found = next(filter(None, (_works(first, trial) for trial in trials)), None)
            if found is None:
                continue
            trial, wanted = found
            for label, way in others:
                if not _agrees(way, trial, wanted):
                    seen = "torch.%s and %s give different results for the same numbers" % (name, label)
                    raise StageFailed("device-computes-wrong", seen)


def _groups() -> Iterator[Tuple[str, Callable[..., Any], List[Tuple[str, Callable[..., Any]]]]]:
    """Yield names, torch's function, and what else must give the same."""
    aliases = dict(pair.split() for pair in _SAME.split(", "))
    for name in sorted({*dir(torch)} & ({*dir(torch.Tensor)} | {*dir(torch.special)} | {*aliases})):
        function = getattr(torch, name)
        if (
            name.startswith("_")
            or any(part in name for part in _LEFT_OUT)
            or not callable(function)
            or isinstance(function, type)
        ):
            continue
        others = [
            ("torch.Tensor.%s" % name, getattr(torch.Tensor, name, None)),
            ("torch.Tensor.%s_" % name, getattr(torch.Tensor, name + "_", None)),
            ("torch.special.%s" % name, getattr(torch.special, name, None)),
        ]
        if name in aliases:
            other = aliases[name].replace("linalg_", "linalg.")
            place: Any = torch.linalg if "." in other else torch
            others.append(("torch.%s" % other, getattr(place, other.rpartition(".")[2], None)))
        yield name, function, [(label, way) for label, way in others if callable(way)]


def _arguments_to_try() -> Iterator[_Arguments]:
    """Yield what is tried one after the other, until something fits. On the CPU, which refuses what does not: a GPU's context may end with it."""
    some = distinct(6, 6, wide=1.0).float()
    above, mask = some.flip(0).abs() + 0.25, some > 0
    index = (torch.arange(36) * 7 % 6).view(6, 6)
    whole, row, cubes = index % 5 + 1, some[0].contiguous(), distinct(2, 3, 3).float()
    picks = torch.tensor([0, 2])
    several: Tuple[Tuple[Any, ...], ...] = (
        (), (above,), (0,), (above, above), (2,), (1, 0), (0, index), (0, index, above), (mask, 1.5), (0, picks), ([2, 18],), (2, 0),
        (0, picks, some[:2]), (0, picks, 1.5), ((picks,), some[:2]), (0, 1, 3), (row,), (row, row), (cubes,), (cubes, cubes), (above, row), ((1, 0),),
        (mask,), (mask, above), (some[0], 1, 0), (2, 0, 4.0), ([3, 3], 0),
    )  # fmt: skip
    for start in (some, above, whole, mask, row, cubes):
        for more in several:
            yield start, more


def _works(function: Callable[..., Any], trial: _Arguments) -> Any:
    """Return the trial with what it gives, twice the same; None where it does not fit."""
    try:
        found, again = function(trial[0].clone(), *trial[1]), function(trial[0].clone(), *trial[1])
    except Exception:  # whatever a function says of what it does not take
        return None
    return (trial, found) if isinstance(found, (torch.Tensor, tuple, list)) and _alike(found, again) else None


def _agrees(way: Callable[..., Any], trial: _Arguments, wanted: Any) -> bool:
    start = trial[0].clone()
    try:
        found = way(start, *trial[1])
    except Exception:  # it has arguments of its own, or cannot write a result of this kind in place
        return True
    if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor) and found.dtype != wanted.dtype:
        return True  # in place the kind stays as it was
    return _alike(found, wanted)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    if one.is_complex() or not one.is_floating_point():
        return torch.equal(one, other)
    values, wanted = (
        torch.nan_to_num(each.detach().cpu().double(), nan=91.0, posinf=92.0, neginf=-92.0) for each in (one, other)
    )
    return not values.numel() or float((values - wanted).abs().max()) <= _NEAR * max(1.0, float(wanted.abs().max()))
