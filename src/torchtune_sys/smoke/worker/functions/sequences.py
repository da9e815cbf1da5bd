"""Layers and tensors for sequences, and autograd's own promises, beside the same written out in float64."""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, torch_has_reached
from torchtune_sys.smoke.worker.functions.combined import answers_are_right
from torchtune_sys.smoke.worker.functions.inputs import distinct, normalised
from torchtune_sys.smoke.worker.functions.operators import bound_on

_WIDTHS = (3, 4)
"""Inputs and states of recurrent layers."""


def sequences_are_right(here: RankContext) -> None:
    """Recurrent layers and attention give what their equations give, forward and backward."""
    for kind, cell in (("RNN", _rnn_cell), ("GRU", _gru_cell), ("LSTM", _lstm_cell)):
        for options in ({}, {"batch_first": True, "bidirectional": True, "num_layers": 2}):
            _recurrent_is_right(here, kind, cell, options)
    _heads_are_right(here)
    _blocks_are_right(here)


def _filled(layer: nn.Module, seed: int) -> nn.Module:
    """Give it weights that no generator has drawn."""
    with torch.no_grad():
        for number, value in enumerate(layer.parameters()):
            value.copy_(distinct(*value.shape, seed=seed + 2 * number, wide=0.5))
    return layer


_Steps = Tuple[torch.Tensor, torch.Tensor]
Cell = Callable[[torch.Tensor, _Steps, Dict[str, torch.Tensor], str], _Steps]


def _both(given: torch.Tensor, state: torch.Tensor, weights: Dict[str, torch.Tensor], name: str) -> _Steps:
    return (
        given @ weights["weight_ih_" + name].t() + weights["bias_ih_" + name],
        state @ weights["weight_hh_" + name].t() + weights["bias_hh_" + name],
    )


def _rnn_cell(given: torch.Tensor, state: _Steps, weights: Dict[str, torch.Tensor], name: str) -> _Steps:
    one, other = _both(given, state[0], weights, name)
    return torch.tanh(one + other), state[1]


def _logistic(values: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-values))


def _gru_cell(given: torch.Tensor, state: _Steps, weights: Dict[str, torch.Tensor], name: str) -> _Steps:
    one, other = (part.chunk(3, 1) for part in _both(given, state[0], weights, name))
    reset, update = _logistic(one[0] + other[0]), _logistic(one[1] + other[1])
    return (1 - update) * torch.tanh(one[2] + reset * other[2]) + update * state[0], state[1]


def _lstm_cell(given: torch.Tensor, state: _Steps, weights: Dict[str, torch.Tensor], name: str) -> _Steps:
    one, other = _both(given, state[0], weights, name)
    enter, forget, cell, out = (one + other).chunk(4, 1)
    kept = _logistic(forget) * state[1] + _logistic(enter) * torch.tanh(cell)
    return _logistic(out) * torch.tanh(kept), kept


def _read_through(
    given: torch.Tensor,
    begun: Tuple[torch.Tensor, ...],
    cell: Cell,
    weights: Dict[str, torch.Tensor],
    layers: int,
    both_ways: bool,
) -> torch.Tensor:
    """Read [place, sentence, feature] in each layer, and from the end, too. ``begun``: with which states, layer by layer and way by way."""
    for layer in range(layers):
        ways: List[torch.Tensor] = []
        for suffix in ("", "_reverse")[: 1 + both_ways]:
            first, second = (one[layer * (1 + both_ways) + len(ways)] for one in begun)
            state = (first, second)
            said = []
            for place in given.flip(0) if suffix else given:
                state = cell(place, state, weights, "l%d%s" % (layer, suffix))
                said.append(state[0])
            ways.append(torch.stack(said[::-1] if suffix else said))
        given = torch.cat(ways, 2)
    return given


def _recurrent_is_right(here: RankContext, kind: str, cell: Cell, options: Dict[str, Any]) -> None:
    layer = _filled(getattr(nn, kind)(*_WIDTHS, **options), 11)
    weights = {name: value.detach().double().requires_grad_() for name, value in layer.named_parameters()}
    given = distinct(5, 2, _WIDTHS[0])  # five places, two sentences
    wide = given.clone().requires_grad_()
    layers, both_ways = options.get("num_layers", 1), "bidirectional" in options
    begun = tuple(distinct(layers * (1 + both_ways), 2, _WIDTHS[1], seed=seed, wide=float(bool(options))) for seed in (41, 43))
    wanted = _read_through(wide, begun, cell, weights, layers, both_ways)
    wanted.pow(2).sum().backward()
    first = bool(options.get("batch_first"))
    layer.to(here.device)
    held = given.to(here.device, torch.float32).requires_grad_()
    state: List[Any] = [one.to(here.device, torch.float32) for one in begun]
    state = [(*state,) if kind == "LSTM" else state[0]] if options else []  # a text in pieces goes on where it was
    found = layer(held.transpose(0, 1) if first else held, *state)[0]
    found = found.transpose(0, 1) if first else found
    found.pow(2).sum().backward()
    name = "nn.%s%s" % (kind, " (%s)" % ", ".join(options) if options else "")
    pairs = [(name, found, wanted), ("the input's gradient of %s" % name, held.grad, wide.grad)]
    pairs += [
        ("the gradient of %s of %s" % (key, name), value.grad, weights[key].grad) for key, value in layer.named_parameters()
    ]
    _all_close(here, pairs)


def _all_close(here: RankContext, pairs: List[Tuple[str, Any, torch.Tensor]]) -> None:
    for name, found, wanted in pairs:
        values = torch.zeros_like(wanted) if found is None else found.detach().to("cpu", torch.float64)
        off = float((values - wanted.detach()).abs().max())
        if not off <= bound_on(here, torch.float32) * max(1.0, float(wanted.detach().abs().max())):
            raise StageFailed("layer-wrong", "%s is off by %.3g from its equations in float64" % (name, off))


def _of_two_heads(given: torch.Tensor, weights: Dict[str, torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
    """``hidden``: places that nobody sees, true by place."""
    parts = (given @ weights["in_proj_weight"].t() + weights["in_proj_bias"]).chunk(3, 2)
    query, key, value = (part.view(*given.shape[:2], 2, -1).transpose(1, 2) for part in parts)
    scores = torch.exp(query @ key.transpose(2, 3) / (query.shape[-1] ** 0.5)) * (~hidden).double()[:, None, None]
    seen = (scores / scores.sum(3, keepdim=True) @ value).transpose(1, 2).reshape(given.shape)
    return seen @ weights["out_proj.weight"].t() + weights["out_proj.bias"]


def _heads_are_right(here: RankContext) -> None:
    layer = _filled(nn.MultiheadAttention(8, 2, batch_first=True), 13)
    weights = {name: value.detach().double() for name, value in layer.named_parameters()}
    given = distinct(2, 5, 8, wide=1.0)
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[1, 3:] = True
    layer.to(here.device)
    wanted = _of_two_heads(given, weights, hidden)
    held = given.to(here.device, torch.float32)
    for name, each in (("in training", layer.train()), ("in eval", layer.eval())):
        with torch.no_grad():
            found = each(held, held, held, key_padding_mask=hidden.to(here.device), need_weights=name == "in training")[0]
        _all_close(here, [("nn.MultiheadAttention %s" % name, found, wanted)])


def _blocks_are_right(here: RankContext) -> None:
    """Try a whole block of a transformer: in eval torch takes a way of its own for it."""
    layer = _filled(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 17)
    weights = {name: value.detach().double() for name, value in layer.named_parameters()}
    given = distinct(2, 5, 8, wide=1.0)
    own = {name[len("self_attn.") :]: value for name, value in weights.items() if name.startswith("self_attn.")}
    first = _layer_normalised(given + _of_two_heads(given, own, torch.zeros(2, 5, dtype=torch.bool)), weights, "norm1")
    wide = first @ weights["linear1.weight"].t() + weights["linear1.bias"]
    after = (wide * (wide > 0)) @ weights["linear2.weight"].t() + weights["linear2.bias"]
    wanted = _layer_normalised(first + after, weights, "norm2")
    layer.to(here.device)
    for name, each in (("in training", layer.train()), ("in eval", layer.eval())):
        with torch.no_grad():
            found = each(given.to(here.device, torch.float32))
        _all_close(here, [("nn.TransformerEncoderLayer %s" % name, found, wanted)])


def _layer_normalised(values: torch.Tensor, weights: Dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return normalised(values, 2) * weights[name + ".weight"] + weights[name + ".bias"]


def autograd_keeps_its_promises(here: RankContext) -> None:
    """Gradients add up, stop where they are told to, pass hooks and functions of one's own, and have gradients themselves."""
    answers_are_right(_promises(here), "autograd-wrong")
    answers_are_right(_passes_add_up(here), "accumulation-wrong")


class _Tripled(torch.autograd.Function):
    """Three times what it is given; what goes back is multiplied by what was kept."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given)
        return given * 3

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        return upstream[0] * ctx.saved_tensors[0]


def _leaf(here: RankContext) -> torch.Tensor:
    return torch.tensor([1.0, -2.0, 3.0], device=here.device, requires_grad=True)


def _promises(here: RankContext) -> Any:
    """Yield names, what is found and what is right: all of whole numbers."""
    one = _leaf(here)
    for _ in range(2):
        (one * one).sum().backward()
    yield "gradients of two backward passes add up", one.grad, [4.0, -8.0, 12.0]
    one = _leaf(here)
    (one.detach() * one + one.data * one).sum().backward()
    yield "detach and data stop a gradient", one.grad, [2.0, -4.0, 6.0]
    one = _leaf(here)
    with torch.no_grad():
        stopped = one * 5
    yield "no_grad records nothing", float(stopped.requires_grad), [0.0]
    yield "after no_grad it records again", float((one * 2).requires_grad), [1.0]
    _Tripled.apply(one).sum().backward()
    yield "a function of one's own (torch.autograd.Function) goes back as it says", one.grad, [1.0, -2.0, 3.0]
    one = _leaf(here)
    called: List[float] = []
    one.register_hook(lambda grad: grad * 2)
    middle = one * 3
    middle.register_hook(lambda grad: called.append(float(grad.sum())))
    middle.sum().backward()
    yield "a hook on a tensor (register_hook) changes its gradient", one.grad, [6.0, 6.0, 6.0]
    yield "a hook on what lies between runs", called, [3.0]
    if hasattr(one, "register_post_accumulate_grad_hook"):  # torch 2.1
        one = _leaf(here)
        one.register_post_accumulate_grad_hook(lambda held: called.append(float(held.grad.sum())))
        (one * 4).sum().backward()
        yield "a hook once a gradient is there (register_post_accumulate_grad_hook) runs", called[1:], [12.0]
    yield from _hooks_of_modules(here)
    yield from _in_another_thread(here)
    yield from _after_errors(here)
    one = _leaf(here)
    (first,) = torch.autograd.grad((one**3).sum(), one, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), one)
    yield "a gradient of a gradient", second, [6.0, -12.0, 18.0]
    one = _leaf(here)
    kept = (one * one).sum()
    kept.backward(retain_graph=True)
    kept.backward()
    yield "a second pass through a kept graph", one.grad, [4.0, -8.0, 12.0]
    one = _leaf(here)
    middle = one * 2
    middle.retain_grad()
    (middle * middle).sum().backward()
    yield "retain_grad keeps what lies between", middle.grad, [4.0, -8.0, 12.0]
    yield from _changed_in_place(here)


def _hooks_of_modules(here: RankContext) -> Any:
    layer = nn.Linear(3, 1, bias=False).to(here.device)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    told: List[float] = []
    handles = [
        layer.register_forward_pre_hook(lambda _module, given: (given[0] + 1,)),
        layer.register_forward_hook(lambda _module, _given, found: found * 2),
        layer.register_full_backward_hook(lambda _module, _inputs, outputs: told.append(float(outputs[0].sum()))),
    ]
    calls = [layer(torch.ones(1, 3, device=here.device, requires_grad=True)) for _ in range(3)]
    for found in calls:
        found.sum().backward()
    yield "hooks before and after a module's forward pass, at each of three calls", torch.cat(calls), [[24.0]] * 3
    yield "a hook on a module's backward pass, at each of three", told, [1.0] * 3
    for handle in handles:
        handle.remove()
    yield "hooks that were removed", layer(torch.ones(1, 3, device=here.device)), [6.0]


def _passes_add_up(here: RankContext) -> Any:
    """For weights of one to four dimensions, which have kernels of their own: three passes give three times the whole numbers that one gives."""
    rows: Tuple[Tuple[nn.Module, Tuple[int, ...]], ...] = (
        (nn.Linear(3, 2), (2, 3)),
        (nn.Conv1d(2, 2, 2), (1, 2, 4)),
        (nn.Conv2d(2, 2, 2), (1, 2, 3, 3)),
        (nn.Conv2d(2, 2, 2).to(memory_format=torch.channels_last), (1, 2, 3, 3)),
    )
    for layer, shape in rows:
        layer.to(here.device)
        found: List[torch.Tensor] = []
        for _ in range(3):
            layer(torch.arange(float(math.prod(shape)), device=here.device).view(shape)).sum().backward()
            found.append(torch.cat([one.grad.flatten() for one in layer.parameters()]).round())
        yield "gradients of nn.%s after three passes" % type(layer).__name__, found[2], 3 * found[0].double()


def _in_another_thread(here: RankContext) -> Any:
    """Whether what happens is recorded is each thread's own question, and a trainer may let a thread step."""
    one, told = _leaf(here), []

    def worked() -> None:
        told.append(float((one * 2).requires_grad))
        (one * 3).sum().backward()

    with torch.no_grad():
        thread = threading.Thread(target=worked)
        thread.start()
        thread.join()
    yield "another thread records beside one that does not (no_grad)", told, [1.0]
    yield "the gradient of a backward pass in another thread", torch.zeros(3) if one.grad is None else one.grad, [3.0, 3.0, 3.0]


def _after_errors(here: RankContext) -> Any:
    """Yield whether what holds within a block ends where an error leaves it, which a trainer catches (an evaluation that failed, a sample that cannot be read)."""
    one = torch.ones(2, 2, device=here.device, requires_grad=True)

    def settings() -> List[float]:
        product, drawn = one @ one, torch.random.get_rng_state().sum()
        return [float(product.requires_grad), float(product.dtype == torch.float32), float(drawn)]

    modes: Tuple[Tuple[str, Callable[[], Any]], ...] = (
        ("no_grad()", torch.no_grad),
        ("set_grad_enabled(False)", lambda: torch.set_grad_enabled(False)),
        ("inference_mode()", torch.inference_mode),
        ("autocast()", lambda: torch.autocast(here.kind, torch.bfloat16 if here.kind == "cpu" else torch.float16)),
        ("fork_rng()", lambda: torch.random.fork_rng([])),
    )
    for name, mode in modes:
        before = settings()
        with contextlib.suppress(KeyError), mode():
            torch.randn(1, device="cpu")
            raise KeyError(name)
        after = settings()
        torch.set_grad_enabled(True)  # else it would be said of all that follows
        kept = None if name == "fork_rng()" else -1  # the others draw on
        yield (
            "whether gradients are recorded, products are of float32 and numbers drawn anew after an error within %s" % name,
            after[:kept],
            before[:kept],
        )


def _changed_in_place(here: RankContext) -> Any:
    one = _leaf(here)
    middle = one * 1
    middle[0] = 5.0
    (middle * middle).sum().backward()
    yield "what was written into does not go back", one.grad, [0.0, -4.0, 6.0]
    one = _leaf(here)
    middle = one * 1
    squared = middle * middle
    middle.add_(1)
    refused = 0.0
    try:
        squared.sum().backward()
    except RuntimeError:
        refused = 1.0
    yield "a value that was changed after it was kept for the way back is refused", refused, [1.0]


def scores_are_changed(here: RankContext) -> None:
    """Check attention whose scores a function changes, here so that each place sees itself alone. Uncompiled, too, it is traced by the compiler. On the CPU it has no gradient."""
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:  # until torch 2.5
        return
    query, value = torch.zeros(1, 1, 16, 16, device=here.device), torch.arange(256.0, device=here.device).view(1, 1, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its pace
        found = flex_attention(
            query, query, value, lambda score, _batch, _head, at, other: torch.where(at == other, score, -float("inf"))
        )
    answers_are_right([("flex_attention with a score_mod by which each place sees itself alone", found, value)], "layer-wrong")


def jagged_are_padded(here: RankContext) -> None:
    """Check sentences that differ in length (nested tensors). What they import takes seconds but where the compiler was there before."""
    if not torch_has_reached(2, 13):  # before, it was never seen
        return
    rows = [torch.arange(2.0 * length, device=here.device).view(length, 2) for length in (2, 3, 1)]
    held = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    padded = held.to_padded_tensor(-1.0)
    padded.square().sum().backward()
    wanted = torch.full((3, 3, 2), -1.0, device=here.device)
    for number, row in enumerate(rows):
        wanted[number, : len(row)] = row
    pairs = [("a padded nested tensor (jagged)", padded.detach(), wanted)]
    pairs += [("the gradient of a nested tensor (jagged)", held.grad.values(), 2 * torch.cat(rows))]
    answers_are_right(pairs, "layer-wrong")
