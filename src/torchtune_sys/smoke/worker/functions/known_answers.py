"""What torch answers under each name that it has, and its modules, optimizers and schedules with each option, beside answers on which torch 2.0 to 2.15 agree
(scripts/known_answers.py wrote them down). Whatever a training calls is tried: forward and backward, in each precision, in memory that is turned."""

from __future__ import annotations

import contextlib
import functools
import math
import platform
import warnings
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed
from torchtune_sys.smoke.worker.functions.answers_of_functions import ANSWERS_OF_FUNCTIONS
from torchtune_sys.smoke.worker.functions.answers_of_options import ANSWERS_OF_OPTIONS, ANSWERS_OF_RECIPES
from torchtune_sys.smoke.worker.functions.inputs import distinct
from torchtune_sys.smoke.worker.functions.recipes import recipes

Trial = Tuple[Any, ...]
"""What is handed over: tensors of float64 stand for numbers of any precision."""
KINDS = {"d": torch.float64, "f": torch.float32, "b": torch.bfloat16, "h": torch.float16}
_OFF_ANSWERS = {torch.float64: 2.0**-30, torch.float32: 2.0**-13, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-7}
"""As a share of the sum of all terms' sizes. Rounding was an eighth of it at most where the answers were written down, or a name is not tried in that precision."""
HOMES: Dict[str, Tuple[str, Any]] = {
    "f": ("torch.nn.functional", nn.functional),
    "t": ("torch", torch),
    "l": ("torch.linalg", torch.linalg),
    "s": ("torch.special", torch.special),
    "x": ("torch.fft", torch.fft),
    "T": ("torch.Tensor", torch.Tensor),
}
_OFF_RECIPE = 2.0**-20
"""Recipes are done in float64, optimizers partly in float32."""
_OFF_SLOPES_OF_ANSWERS = 2.0**-12
_SEEN_ON = ("x86_64", "AMD64")
_NO_NUMBER = (91.0, 92.0, -92.0)


def trials() -> List[Trial]:
    """Return what there is to hand over; each row of answers says by its number which it was."""
    some = distinct(6, 6, wide=1.0)
    above, mask = some.flip(0).abs() + 0.25, some > 0
    index = (torch.arange(6)[:, None] * 5 + torch.arange(6)) % 6  # no place twice: whose is the last would be chance
    whole, row, cubes = index % 5 + 1, some[0].contiguous(), distinct(2, 3, 3)
    steady = some @ some.t() + 2 * torch.eye(6, dtype=torch.float64)
    picks, answers = torch.tensor([0, 2]), torch.tensor([3, 0, 5, 5, 1, 2])
    signs, marks = (mask.double() * 2 - 1), torch.tensor([1.0, -1, 1, 1, -1, 1], dtype=torch.float64)
    line, picture, room = distinct(2, 4, 9, seed=41), distinct(2, 4, 6, 5, seed=41), distinct(1, 2, 4, 4, 3, seed=41)
    starts: Tuple[Any, ...] = (some, above, whole, mask, row, cubes, line, picture, room, steady, picks)
    several: Tuple[Trial, ...] = (
        (), (above,), (0,), (above, above), (2,), (1, 0), (0, index), (0, index, above), (mask, 1.5), (0, picks), ([2, 18],), (2, 0),
        (0, picks, some[:2]), (0, picks, 1.5), ((picks,), some[:2]), (0, 1, 3), (row,), (row, row), (cubes,), (cubes, cubes), (above, row), ((1, 0),),
        (mask,), (mask, above), (some[0], 1, 0), (2, 0, 4.0), ([3, 3], 0), (answers,), (signs,), (above, marks), (marks,), (whole,), (2, 2), ((1, 2),), ((3, 2),),
        (distinct(3, 4, 3, seed=43),), (distinct(3, 4, 3, 3, seed=43),), (distinct(3, 2, 3, 3, 3, seed=43),), (distinct(4, 3, 3, seed=43),),
        (distinct(4, 3, 3, 3, seed=43),), (distinct(2, 3, 3, 3, 3, seed=43),), ((6,),), ((6,), row, marks), (2, 0.5), (steady,), (0.25, 0.75), (2.0,),
        (index, above), (above, whole), ([0, 1],), (1, 2, 3), (0, 2, 2, 1), (above, some[:, :2]), ([steady],), (torch.float64,), (4, 2), ((1, 1),), (0.5, 2.0, True),
    )  # fmt: skip
    return [(start, *more) for start in starts for more in several] + [
        (answers, some), ([some, above],), ([some, above], 1), (some, [some, above]), ("ij,jk->ik", some, above), (row, row, row), (picks, 6), (6,), (0, 6, 2), (1.0, 2.0, 5),
        ([row, marks],), (above, distinct(4, 6), distinct(4)), (some, above[:, :3], distinct(2, 6, 3, seed=43)), (3, 4), ((2, 3), 1.5), (1.5,), (mask, some, above),
        (mask, some, 0.5), ([[1.0, 2.0], [3.0, 4.0]],), (row, marks, answers), (row, marks, mask[0]),
        (some, 1, (2, 3)), (distinct(1, 4, 4, 6), 2), (row, cubes, cubes.transpose(1, 2)), (distinct(3, 3), cubes, cubes), (row, (2, 3), (1, 2)), (some, (2, 3), (1, 2)), (some, row, (2, 3), 1),
        (1, above), (some, 0, index, above, "sum"), (some, 0, index, above, "amax"), (some, 0, picks, some[:2], "amax"), (row[2],), (mask[0, 0],), (picture, row[:4], row[:4].abs(), marks[:4], marks[:4], False, 0.1, 1e-5),
        (picture, distinct(2, 3, 4, 2, seed=43, wide=1.0), 0, 0, False), (picture, distinct(2, 3, 4, 2, seed=43, wide=1.0)), (distinct(2, 2, 3), (2, 2, 4, 5)), (distinct(2, 2, 3), (2, 2, 4, 5), False), (cubes.permute(1, 2, 0).contiguous(),), (some, (6,), row, marks, 1e-5),
    ]  # fmt: skip


OPTIONS: Tuple[Dict[str, Any], ...] = (
    {}, {"keepdim": True}, {"dim": 1}, {"dim": 0}, {"unbiased": False}, {"correction": 0}, {"alpha": 0.5}, {"value": 0.5}, {"rounding_mode": "floor"}, {"rounding_mode": "trunc"},
    {"reduction": "sum"}, {"reduction": "none"}, {"approximate": "tanh"}, {"negative_slope": 0.5}, {"lambd": 0.25}, {"descending": True}, {"largest": False}, {"stable": True}, {"p": 3.0},
    {"p": 1.0, "dim": 1}, {"ord": 1}, {"eps": 0.5}, {"margin": 0.25}, {"beta": 2.0}, {"delta": 0.25}, {"threshold": 0.25}, {"diagonal": 1}, {"offset": 1}, {"ignore_index": 5}, {"label_smoothing": 0.25},
    {"log_target": True}, {"full": True}, {"log_input": False}, {"swap": True}, {"right": True}, {"upper": True}, {"mode": "reflect"}, {"mode": "replicate"}, {"mode": "bilinear", "scale_factor": 2}, {"scale_factor": 2.0},
    {"align_corners": True}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"count_include_pad": False}, {"return_indices": True}, {"norm": "ortho"}, {"norm": "forward"}, {"n": 8}, {"half_to_even": True},
    {"min": -0.25}, {"max": 0.25}, {"amin": 0.1}, {"decimals": 1}, {"base": 2.0}, {"bins": 4}, {"minlength": 9}, {"interpolation": "lower"}, {"accumulate": True}, {"dtype": torch.float64}, {"prepend": None},
    {"return_inverse": True}, {"return_counts": True}, {"sorted": True}, {"weights": None}, {"max_norm": 0.5}, {"is_causal": True}, {"scale": 0.5}, {"dim": (0, 1)}, {"side": "right"}, {"nan": 0.5}, {"beta": 0.5, "alpha": 2.0},
)  # fmt: skip
"""What may be named beside."""


def numbers_of(found: Any) -> torch.Tensor:
    """Return all numbers of a result in one row, in float64 on the CPU. Raises TypeError where it has others things."""
    if isinstance(found, torch.Tensor):
        values = found.detach().cpu()
        values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
        return values.double().reshape(-1)
    if isinstance(found, (bool, int, float)):
        return torch.tensor([float(found)], dtype=torch.float64)
    if hasattr(found, "tolist") and hasattr(found, "dtype"):
        return numbers_of(torch.tensor(found.tolist(), dtype=torch.float64))
    if isinstance(found, (tuple, list)):
        return torch.cat([numbers_of(one) for one in found]) if found else torch.zeros(1, dtype=torch.float64)
    raise TypeError(type(found).__name__)


@functools.lru_cache(maxsize=4096)
def weights_for(count: int) -> torch.Tensor:
    """Return numbers between a half and one, of either sign, in no order: no element can be lost, moved or changed without their sum telling."""
    places = torch.arange(count, dtype=torch.float64)
    return (0.5 + (places * 0.6180339887498949) % 0.5) * (1 - 2 * ((places * 7) % 11 % 2))


def summed(values: torch.Tensor) -> float:
    """Return the weighed sum, what is no number as numbers of its own."""
    weights = weights_for(values.numel())
    found = float(values @ weights)
    if math.isfinite(found):
        return found
    nan, most, least = _NO_NUMBER
    return float(torch.nan_to_num(values, nan=nan, posinf=most, neginf=least) @ weights)


def size_of(values: torch.Tensor) -> float:
    """Return how large the terms of the sum are."""
    nan, most, least = _NO_NUMBER
    return float((torch.nan_to_num(values, nan=nan, posinf=most, neginf=least) * weights_for(values.numel())).abs().sum())


def _is_near(values: torch.Tensor, found: float, wanted: float, off: float) -> bool:
    apart = abs(found - wanted)
    return apart <= off * max(abs(wanted), 0.1) or apart <= off * size_of(values)


def laid(trial: Trial, dtype: torch.dtype, turned: bool = False) -> List[Any]:
    """Return a trial's numbers in that precision, each a copy."""
    return [_laid_one(one, dtype, turned) for one in trial]


def _laid_one(one: Any, dtype: torch.dtype, turned: bool) -> Any:
    if isinstance(one, (list, tuple)):
        return type(one)(_laid_one(each, dtype, turned) for each in one)
    if not isinstance(one, torch.Tensor):
        return one
    placed = one.to(dtype if one.dtype == torch.float64 else one.dtype, copy=True)
    return placed.transpose(-1, -2).contiguous().transpose(-1, -2) if turned and placed.dim() > 1 else placed


def slope_of(way: Callable[..., Any], given: List[Any]) -> torch.Tensor:
    """Return the gradients with regard to all that is given."""
    held = [one for one in given if isinstance(one, torch.Tensor) and one.is_floating_point()]
    for one in held:
        one.requires_grad_()
    found = way(*given)
    found = found if isinstance(found, torch.Tensor) else found[0]
    found = torch.view_as_real(found) if found.is_complex() else found
    (found * weights_for(found.numel()).to(found.device, found.dtype).view(found.shape)).sum().backward()
    return numbers_of([torch.zeros_like(one) if one.grad is None else one.grad for one in held])


def answers_are_known(here: RankContext) -> None:
    """Raise StageFailed for the first answer that is another. All on the CPU: the tables of operators.py are for the device. The answers were written down on
    x86-64 with MKL: what other processors and other libraries (OpenBLAS, Arm Performance Libraries) answer was not seen, and is not judged."""
    if platform.machine() not in _SEEN_ON or not torch.backends.mkl.is_available():
        return
    given, lows = trials(), _low_precisions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are to go
        for line in (*ANSWERS_OF_FUNCTIONS.split(";"), *ANSWERS_OF_OPTIONS.split(";")):
            if line.strip():
                _answers_as(line.split(), given, lows)
        _recipes_answer()


def _low_precisions() -> str:
    """Return the letters of those that most functions take on this CPU. Torch 2.0 has few in float16, and each refusal takes it five milliseconds."""
    found = ""
    for letter in "bh":
        with contextlib.suppress(RuntimeError):
            one = torch.ones(2, 2, dtype=KINDS[letter])
            nn.functional.layer_norm(torch.mm(one, one).exp(), (2,)).softmax(1)
            found += letter
    return found


def _answers_as(words: List[str], given: List[Trial], lows: str) -> None:
    """``words``: number of the trial (and of the options), the sum, the gradients' sum, in which ways it is tried, and the names. ``lows``: the low precisions that are tried."""
    place, wanted, slope, ways, *names = words
    number, _, option = place.partition(".")
    trial, options = given[int(number)], OPTIONS[int(option or 0)]
    for count, name in enumerate(names):
        home, place_of = HOMES[name[0]]
        way = getattr(place_of, name[2:], None)
        if way is None:
            continue
        label = "%s.%s" % (home, name[2:]) + (" (%s)" % ", ".join("%s=%s" % pair for pair in options.items()) if options else "")
        cause = "layer-wrong" if name[0] == "f" else "device-computes-wrong"
        bound = functools.partial(way, **options) if options else way
        _is_answer(label + " of float32", cause, bound, laid(trial, torch.float32), float(wanted), _OFF_ANSWERS[torch.float32])
        if slope != "-":
            _is_slope(label, cause, bound, laid(trial, torch.float32), float(slope))
        if count == 0:
            tried = [way for way in ways if way not in "bh" or way in lows]
            _answers_in_each_way(label, cause, bound, trial, float(wanted), tried)


def _answers_in_each_way(label: str, cause: str, way: Callable[..., Any], trial: Trial, wanted: float, ways: List[str]) -> None:
    for letter in ways:
        if letter == "t":
            _is_answer(
                label + " of float32, transposed",
                cause,
                way,
                laid(trial, torch.float32, True),
                wanted,
                _OFF_ANSWERS[torch.float32],
            )
        elif letter in KINDS:
            dtype = KINDS[letter]
            _is_answer("%s of %s" % (label, str(dtype)[6:]), cause, way, laid(trial, dtype), wanted, _OFF_ANSWERS[dtype])


def _is_answer(label: str, cause: str, way: Callable[..., Any], given: List[Any], wanted: float, off: float) -> None:
    try:
        values = numbers_of(way(*given))
        found = summed(values)
    except Exception:  # this release, this build or this precision does not have it so
        return
    if not _is_near(values, found, wanted, off):
        raise StageFailed(
            cause, "%s is wrong: the weighed sum of its elements is %.8g, where %.8g is right" % (label, found, wanted)
        )


def _is_slope(label: str, cause: str, way: Callable[..., Any], given: List[Any], wanted: float) -> None:
    try:
        values = slope_of(way, given)
        found = summed(values)
    except Exception:  # as above
        return
    if not _is_near(values, found, wanted, _OFF_SLOPES_OF_ANSWERS):
        words = (label, found, wanted)
        raise StageFailed(
            cause, "the gradient of %s is wrong: the weighed sum of its elements is %.8g, where %.8g is right" % words
        )


def _recipes_answer() -> None:
    wanted = dict(line.strip().rsplit(None, 1) for line in ANSWERS_OF_RECIPES.split(";") if line.strip())
    for name, cause, work in recipes():
        if name not in wanted:
            continue
        try:
            values = numbers_of(work())
            found = summed(values)
        except Exception:  # an older release
            continue
        if not _is_near(values, found, float(wanted[name]), _OFF_RECIPE):
            words = (name, found, float(wanted[name]))
            raise StageFailed(cause, "%s is wrong: the weighed sum of what it gives is %.8g, where %.8g is right" % words)
