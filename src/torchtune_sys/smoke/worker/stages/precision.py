"""Mixed precision: what autocast lowers, and that training bears it; with float16, beside a scaler."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.nn.functional as functional

from torchtune_sys.smoke.worker.context import RankContext, Skipped, StageFailed, repeatable, small_integers
from torchtune_sys.smoke.worker.functions.inputs import distinct
from torchtune_sys.smoke.worker.functions.operators import unless_it_lacks
from torchtune_sys.smoke.worker.grad_scaler import each_optimizer_skips_alone, new_scaler, scaler_skips_and_grows
from torchtune_sys.smoke.worker.models import SmallTransformer, loss_of, seeded, sentences
from torchtune_sys.smoke.worker.stages.training import finite

_STEPS_FOLLOWED = 20
_RATE = 0.3
_AWAY = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
"""How far a loss may be from that of the float32 run. Leaving out a single one of these steps moves the loss by 0.0078 (the last
step) and more. Rounding (8 bits of bfloat16, 11 of float16, in sums that float32 keeps) was seen to move it by 7e-4 and 8e-5."""

_AWAY_LAYERS = 2.0**-4
"""As a share of the largest element. What enters, lies between and leaves is rounded to 8 bits; a channel or a mask that is left out moves half of the largest or more."""


def bfloat16_trains(here: RankContext) -> None:
    """Check that bfloat16 autocast lowers the right operations, and that training matches the float32 run."""
    if not here.has_bfloat16():
        raise Skipped("this GPU has no bfloat16 (compute capability below 8.0)")
    autocast_lowers(here, torch.bfloat16)
    _follows(here, torch.bfloat16)


def autocast_lowers(here: RankContext, dtype: torch.dtype) -> None:
    """Products take the low dtype, what needs the range stays in float32, and outside all is as before."""
    left, right = small_integers((8, 8), 1).to(here.device), small_integers((8, 8), 2).to(here.device)
    picture = small_integers((1, 2, 4, 4), 3).to(here.device)
    high: Dict[str, torch.Tensor] = {}
    decorated = torch.autocast(here.kind, dtype=dtype)(functional.linear)
    low = {"a linear with autocast as its decorator": decorated(left, right)}
    high["linear after autocast"] = functional.linear(left, right)
    with torch.autocast(here.kind, dtype=dtype):
        low["linear"] = functional.linear(left, right)
        low["matmul"] = left @ right.t()
        low["bmm"] = torch.bmm(left[None], right.t()[None])[0]
        low["conv2d"] = functional.conv2d(picture, picture)
        high["cross_entropy"] = functional.cross_entropy(low["linear"], torch.arange(8, device=here.device))
        high["mse_loss"] = functional.mse_loss(low["linear"], right)
        high["a sum of two float32"] = left + right
        if here.kind == "cuda":  # https://docs.pytorch.org/docs/stable/amp.html: these only where the device is CUDA
            high["softmax"] = functional.softmax(low["linear"], -1)
            high["layer_norm"] = functional.layer_norm(low["linear"], (8,))
        with torch.autocast(here.kind, enabled=False):
            high["linear where autocast is disabled"] = functional.linear(left, right)
        low["linear after a block within that disabled autocast"] = functional.linear(left, right)
    for name, found in low.items():
        if found.dtype != dtype:
            cause = "autocast-off" if found.dtype == torch.float32 else "autocast-wrong-dtype"
            raise StageFailed(cause, "%s gives %s under autocast to %s" % (name, _word(found.dtype), _word(dtype)))
    for name, found in high.items():
        if found.dtype != torch.float32:
            raise StageFailed("autocast-lowers-too-much", "%s gives %s, not float32" % (name, _word(found.dtype)))
    _others_stay(here, dtype)
    right_answer = left.to("cpu", torch.float64) @ right.to("cpu", torch.float64).t()  # below 2**7: exact in each dtype
    for name in ("linear", "matmul", "bmm"):
        if not torch.equal(low[name].to("cpu", torch.float64), right_answer):
            raise StageFailed("gemm-wrong", "%s under autocast to %s has a wrong answer" % (name, _word(dtype)))
    _weights_are_lowered_anew(here, dtype)
    _own_functions_get_their_precision(here, dtype)
    _layers_follow(here, dtype)


def _own_functions_get_their_precision(here: RankContext, dtype: torch.dtype) -> None:
    """Check what authors of kernels ask of autocast: float32 with autocast off (cast_inputs), or the precision of where they were called, also on the way back."""
    if not hasattr(torch.amp, "custom_fwd"):  # torch 2.4
        return
    seen: Dict[str, Tuple[torch.dtype, bool]] = {}

    def noted(name: str, value: torch.Tensor) -> torch.Tensor:
        seen[name] = (value.dtype, torch.is_autocast_enabled(here.kind))
        return value * 2

    def function(name: str, **options: Any) -> Any:
        forward = torch.amp.custom_fwd(lambda ctx, value: noted(name, value), device_type=here.kind, **options)
        backward = torch.amp.custom_bwd(lambda ctx, slope: noted("the way back of " + name, slope), device_type=here.kind)
        return type(
            "Function", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        )

    values = torch.ones(2, 2, device=here.device, requires_grad=True)
    raised, kept = function("custom_fwd(cast_inputs=float32)", cast_inputs=torch.float32), function("custom_fwd")
    with torch.autocast(here.kind, dtype=dtype):
        lowered = values @ values
        outputs = kept.apply(raised.apply(lowered).to(dtype))
    outputs.float().sum().backward()
    for name, wanted in {
        "custom_fwd(cast_inputs=float32)": (torch.float32, False),
        "the way back of custom_fwd(cast_inputs=float32)": (torch.float32, False),
        "custom_fwd": (dtype, True),
        "the way back of custom_fwd": (dtype, True),
    }.items():
        if seen.get(name) != wanted:
            found = (
                "is not called"
                if name not in seen
                else "%s with autocast %s" % (_word(seen[name][0]), "on" if seen[name][1] else "off")
            )
            cause = "autocast-lowers-too-much" if wanted[0] == torch.float32 else "autocast-off"
            right = "%s with autocast %s" % (_word(wanted[0]), "on" if wanted[1] else "off")
            raise StageFailed(cause, "under autocast to %s %s is given %s, not %s" % (_word(dtype), name, found, right))


def _layers_follow(here: RankContext, dtype: torch.dtype) -> None:
    """Compare layers whose kernels are others in low precision, and their gradients, with what they give without autocast."""
    told = torch.ones(6, 6, dtype=torch.bool, device=here.device).tril().roll(1, 1)
    heads, picture = (2, 2, 6, 8), (2, 4, 6, 6)
    trials: Tuple[Tuple[str, Callable[..., torch.Tensor], Tuple[Tuple[int, ...], ...]], ...] = (
        ("conv2d", lambda one, by: functional.conv2d(one, by, padding=1), (picture, (6, 4, 3, 3))),
        ("conv2d in groups", lambda one, by: functional.conv2d(one, by, groups=2), (picture, (6, 2, 3, 3))),
        ("conv_transpose2d", lambda one, by: functional.conv_transpose2d(one, by, stride=2), (picture, (4, 3, 2, 2))),
        ("linear", functional.linear, ((3, 5, 8), (7, 8), (7,))),
        ("attention", functional.scaled_dot_product_attention, (heads, heads, heads)),
        ("attention with a mask", lambda *three: functional.scaled_dot_product_attention(*three, attn_mask=told), (heads,) * 3),
        ("causal attention", lambda *three: functional.scaled_dot_product_attention(*three, is_causal=True), (heads,) * 3),
    )  # fmt: skip
    for name, work, shapes in trials:
        found: List[List[torch.Tensor]] = []
        with unless_it_lacks(dtype):
            for low in (False, True):
                given = [
                    distinct(*shape, seed=37 + 4 * place, wide=1.0).to(here.device, torch.float32).requires_grad_()
                    for place, shape in enumerate(shapes)
                ]
                with torch.autocast(here.kind, dtype=dtype, enabled=low):
                    output = work(*given)
                asked = distinct(*output.shape, seed=53, wide=1.0).to(here.device, torch.float32)
                (output.float() * asked).sum().backward()
                found.append([output.detach().float(), *(one.grad for one in given if one.grad is not None)])
        for place, (wanted, lowered) in enumerate(zip(*found) if len(found) == 2 else ()):
            off = float((lowered - wanted).abs().max() / wanted.abs().max())
            if not off <= _AWAY_LAYERS:
                what = "what it gives" if place == 0 else "the gradient of what it takes (number %d)" % place
                seen = "%s under autocast to %s: %s is off by %.3g of its largest element (rounding: at most %.3g)"
                raise StageFailed("amp-diverges", seen % (name, _word(dtype), what, off, _AWAY_LAYERS))


def _others_stay(here: RankContext, dtype: torch.dtype) -> None:
    """Check that what is no product and gets float32 gives the bits that it gives without autocast: no list of torch's lowers it, on any device
    (https://docs.pytorch.org/docs/stable/amp.html)."""
    values = torch.linspace(-3.0, 3.0, 48, device=here.device).view(2, 4, 6)
    scale = torch.linspace(0.5, 1.5, 6, device=here.device)
    means, spreads = torch.zeros(4, device=here.device), torch.ones(4, device=here.device)
    trials: Tuple[Tuple[str, Callable[[], torch.Tensor]], ...] = (
        ("layer_norm", lambda: functional.layer_norm(values, (6,), scale, scale)),
        ("group_norm", lambda: functional.group_norm(values, 2)),
        ("batch_norm", lambda: functional.batch_norm(values, means, spreads)),
        ("softmax", lambda: functional.softmax(values, -1)),
        ("log_softmax", lambda: functional.log_softmax(values, -1)),
        ("gelu", lambda: functional.gelu(values)),
        ("silu", lambda: functional.silu(values)),
        ("sigmoid", lambda: torch.sigmoid(values)),
        ("exp", lambda: torch.exp(values)),
        ("a product of elements", lambda: values * scale),
        ("a mean", lambda: values.mean(-1)),
        ("a sum", lambda: values.sum(0)),
    )
    for name, work in trials:
        wanted = work()
        with torch.autocast(here.kind, dtype=dtype):
            found = work()
        if found.dtype != torch.float32 or not torch.equal(found, wanted):
            how = _word(found.dtype) if found.dtype != torch.float32 else "other bits than without autocast"
            raise StageFailed(
                "autocast-lowers-too-much", "%s of float32 gives %s under autocast to %s" % (name, how, _word(dtype))
            )


def _weights_are_lowered_anew(here: RankContext, dtype: torch.dtype) -> None:
    """Within a block a weight is lowered once and kept; the next block must see what a step has made of it. Below 2**8: exact in each dtype."""
    weight = torch.nn.Parameter(small_integers((8, 8), 4).to(here.device))
    inputs = small_integers((8, 8), 5).to(here.device)
    for steps in range(2):
        with torch.autocast(here.kind, dtype=dtype):
            found = functional.linear(inputs, weight)
        wanted = inputs.to("cpu", torch.float64) @ weight.detach().to("cpu", torch.float64).t()
        if not torch.equal(found.detach().to("cpu", torch.float64), wanted):
            if steps == 0:
                raise StageFailed("gemm-wrong", "linear under autocast to %s has a wrong answer" % _word(dtype))
            seen = "under autocast to %s a layer goes on with its weights from before the step" % _word(dtype)
            raise StageFailed(
                "autocast-cache-stale", seen, "find out why autocast's cache is not cleared (torch.clear_autocast_cache)"
            )
        with torch.no_grad():
            weight.add_(1)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _follows(here: RankContext, dtype: torch.dtype, scaler: Any = None) -> None:
    """From the same start, on the same data, the losses are those of float32 but for rounding."""
    here.plain_losses = here.plain_losses or _losses(here, torch.float32, None)
    plain, low = here.plain_losses, _losses(here, dtype, scaler)
    away = max(abs(one - other) for one, other in zip(plain, low))
    here.measure("away from float32", away, "")
    here.measure("loss", low[-1], "")
    if not away <= _AWAY[dtype]:
        raise StageFailed(
            "amp-diverges",
            "under autocast to %s a loss is %.4g away from that of the float32 run (rounding: at most %.4g); %s against %s"
            % (_word(dtype), away, _AWAY[dtype], _row(low), _row(plain)),
        )
    if not low[-1] < low[0] - _STEPS_FOLLOWED * _AWAY[dtype]:
        raise StageFailed(
            "training-does-not-learn", "under autocast to %s the loss does not fall: %s" % (_word(dtype), _row(low))
        )


def _row(losses: List[float]) -> str:
    return " ".join("%.4f" % loss for loss in losses)


def _losses(here: RankContext, dtype: torch.dtype, scaler: Any) -> List[float]:
    """Return the loss before each step, and that after the last."""
    seeded(2)
    model = SmallTransformer().to(here.device)
    # Plain descent: Adam divides by the gradient's size, so that a gradient that is wrong by a factor would not show.
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    losses: List[float] = []
    for step in range(_STEPS_FOLLOWED + 1):
        optimizer.zero_grad()
        with torch.autocast(here.kind, dtype=dtype) if dtype != torch.float32 else contextlib.nullcontext():
            loss = loss_of(model, sentences(16, step), here.device)
        losses.append(loss.item())
        (loss if scaler is None else scaler.scale(loss)).backward()
        _stay_float32(model)
        finite("under autocast to %s" % _word(dtype) if dtype != torch.float32 else "in float32", step, losses[-1], model)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return losses


def _stay_float32(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        for what, tensor in (("parameter", parameter), ("gradient", parameter.grad)):
            if tensor is None or tensor.dtype != torch.float32:
                seen = "missing" if tensor is None else _word(tensor.dtype)
                raise StageFailed("amp-parameters-lowered", "the %s of %s is %s under autocast, not float32" % (what, name, seen))


def float16_trains(here: RankContext) -> None:
    """Check float16 autocast in the same way, and that the gradient scaler works."""
    float16_autocast_is_there(here)
    autocast_lowers(here, torch.float16)
    with repeatable(here):
        each_optimizer_skips_alone(here)
        scaler_skips_and_grows(here)  # first: a scaler that is wrong makes training diverge too
    # 2**8 is small enough for every gradient of this model to stay below float16's 65504: no step is to be left out.
    _follows(here, torch.float16, new_scaler(here, 2.0**8, 1000))


def float16_autocast_is_there(here: RankContext) -> None:
    """Raise Idle where it is not: on the CPU it came with torch 2.3 and after. Before, asking for it raised (2.0) or warned."""
    if here.kind != "cpu":
        return
    lacks = "torch %s has no float16 autocast with scaler on the CPU" % torch.__version__
    if not hasattr(torch.amp, "GradScaler"):
        raise Skipped(lacks)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch.autocast("cpu", dtype=torch.float16):
            pass
    if any("not supported" in str(warning.message) for warning in said):
        raise Skipped(lacks)
