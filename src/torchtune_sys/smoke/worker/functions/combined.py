"""What a step of training combines, in whole numbers, of which there is one right answer: rows of a name, what is found and what is right."""

from __future__ import annotations

import copy
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed

Answer = Tuple[str, Any, Any]
_ATTENDING, _ATTENDED = 64, 8
_LENGTHS = (1, 3, 2)
"""In an order that is not its own inverse."""
_EXPERTS, _CHOSEN = 3, 2


def beside_what_is_right(name: str, found: torch.Tensor, wanted: torch.Tensor, wrong: Optional[torch.Tensor]) -> str:
    """Return words on six numbers of a row and on those that are right, from the first six that hold a wrong one on."""
    at = int(wrong.int().argmax()) // 6 * 6 if wrong is not None else 0
    shown = [" ".join("%g" % one for one in each[at : at + 6].tolist()) for each in (found, wanted)]
    return "%s: %s, where %s is right" % (name, *shown)


def answers_are_right(answers: Iterable[Answer], cause: str) -> None:
    """Raise StageFailed for the first that is not."""
    for name, found, right in answers:
        values = torch.as_tensor(found).detach().cpu().double()
        wanted = torch.as_tensor(right).cpu().double()
        values, wanted = values.flatten(), wanted.flatten()
        if not torch.equal(values, wanted):
            raise StageFailed(
                cause, beside_what_is_right(name, values, wanted, values != wanted if len(values) == len(wanted) else None)
            )


def combined_steps_are_right(here: RankContext) -> None:
    """Check what models do between their layers, and what becomes of a gradient on its way."""
    for rows in (_attention_drops, _pairs_turn, _sentences_are_packed, _experts_are_chosen, _stays_tied, _reaches_all):
        answers_are_right(rows(here), "layer-wrong")
    answers_are_right(_numbers_of_eight_bits(here), "device-computes-wrong")
    for rows in (_kept_for_the_way_back, _gradients_of_some):
        answers_are_right(rows(here), "autograd-wrong")


def _attention_drops(here: RankContext) -> Iterator[Answer]:
    """Keys alike give each place an eighth, which is one of these values; what dropout leaves of it is two."""
    query = torch.ones(4, 4, _ATTENDING, _ATTENDED, device=here.device)
    value = (_ATTENDED * torch.eye(_ATTENDED, device=here.device)).expand(4, 4, -1, -1).clone().requires_grad_()
    found = functional.scaled_dot_product_attention(query, torch.zeros_like(value), value, dropout_p=0.5)
    found.sum().backward()
    left, name = found.detach(), "attention with dropout (dropout_p=0.5)"
    yield "%s, weights that are neither 0 nor twice as large" % name, int(((left != 0) & (left != 2)).sum()), 0
    yield "%s leaves about half of them" % name, abs(float((left == 2).double().mean()) - 0.5) < 0.06, True
    yield "%s, the values' gradient" % name, value.grad[..., 0] * _ATTENDED, left.sum(2)


def _pairs_turn(here: RankContext) -> Iterator[Answer]:
    """As complex numbers, which is how rotary embeddings do it: by one right angle, and by two."""
    held = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=here.device, requires_grad=True)
    angles = torch.complex(torch.tensor([0.0, -1.0], device=here.device), torch.tensor([1.0, 0.0], device=here.device))
    found = torch.view_as_real(torch.view_as_complex(held) * angles)
    (found * held.detach()).sum().backward()
    yield "pairs turned as complex numbers", found, [-2, 1, -3, -4]
    yield "the gradient of pairs turned as complex numbers", held.grad, [2, -1, -3, -4]


def _sentences_are_packed(here: RankContext) -> Iterator[Answer]:
    rows = torch.arange(1.0, 19.0, device=here.device).view(3, 3, 2)
    packed = rnn.pack_padded_sequence(rows, torch.tensor(_LENGTHS), batch_first=True, enforce_sorted=False)
    back, lengths = rnn.pad_packed_sequence(packed, batch_first=True)
    right = torch.stack([row * (torch.arange(3) < length)[:, None] for row, length in zip(rows.cpu(), _LENGTHS)])
    yield "sentences packed in any order (enforce_sorted=False)", back, right
    yield "their lengths", lengths, _LENGTHS


def _experts_are_chosen(here: RankContext) -> Iterator[Answer]:
    """Each row goes to two of three experts, and what they give is added up (a mixture of experts)."""
    given = torch.arange(12.0, device=here.device).view(6, 2).requires_grad_()
    scores = [[(2 * row + 3 * expert) % 7 for expert in range(_EXPERTS)] for row in range(6)]
    gates, chosen = torch.tensor(scores, dtype=torch.float32, device=here.device).topk(_CHOSEN, dim=1)
    found = torch.zeros_like(given)
    for expert in range(_EXPERTS):
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        found = found.index_add(0, rows, given[rows] * (expert + 1) * gates[rows, place][:, None])
    found.sum().backward()
    shares = [sum((place + 1) * row[place] for place in range(_EXPERTS) if row[place] > min(row)) for row in scores]
    yield "rows given to experts (topk, index_add)", found, torch.tensor(shares)[:, None] * torch.arange(12).view(6, 2)
    yield "the gradient of rows given to experts", given.grad, torch.tensor(shares)[:, None].expand(6, 2)


def _stays_tied(here: RankContext) -> Iterator[Answer]:
    """Yield whether an embedding and the last layer that are one tensor stay one, wherever the model goes, and whether all of a model goes into a mode."""
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)).to(here.device)
    model[1].weight = model[0].weight
    model.to(torch.bfloat16)
    yield "a model whose layers share a weight, in bfloat16: the weight is one", model[1].weight is model[0].weight, True
    yield "the parameters of a model whose layers share one", len([*model.parameters()]), 1


def _reaches_all(here: RankContext) -> Iterator[Answer]:
    """Yield how many modules, one within the other, are not as they are to be after what is asked of the whole."""
    rows: Tuple[Tuple[str, Callable[[nn.Module], Any], Callable[[nn.Module], bool]], ...] = (
        ("eval()", lambda all_of: all_of.eval(), lambda one: not one.training),
        ("train()", lambda all_of: all_of.eval().train(), lambda one: one.training),
        ("requires_grad_(False)", lambda all_of: all_of.requires_grad_(False), lambda one: not any(each.requires_grad for each in _own_parameters(one))),
        ("copy.deepcopy of what is frozen", lambda all_of: copy.deepcopy(all_of.requires_grad_(False)), lambda one: not any(each.requires_grad for each in _own_parameters(one))),
        ("zero_grad()", lambda all_of: [all_of(torch.ones(2, 1, device=here.device)).sum().backward(), all_of.zero_grad()], lambda one: all(each.grad is None for each in _own_parameters(one))),
        ("double()", lambda all_of: all_of.double(), lambda one: all(each.dtype == torch.float64 for each in _own_parameters(one))),
        ("to(bfloat16)", lambda all_of: all_of.to(torch.bfloat16), lambda one: all(each.dtype == torch.bfloat16 for each in _own_parameters(one))),
        ("to_empty(meta)", lambda all_of: all_of.to_empty(device="meta"), lambda one: all(each.is_meta for each in (*_own_parameters(one), *one.buffers(recurse=False)))),
        ("apply()", lambda all_of: all_of.apply(lambda one: one.register_buffer("met", None)), lambda one: hasattr(one, "met")),
        ("state_dict()", lambda all_of: all_of.load_state_dict({name: value + 1 for name, value in all_of.state_dict().items()}), lambda one: all(float(each.detach().max()) > 0.5 for each in (*_own_parameters(one), *one.buffers(recurse=False)))),
    )  # fmt: skip
    for name, ask, is_so in rows:
        nested = nn.Sequential(nn.Sequential(nn.Sequential(nn.BatchNorm1d(1)), nn.BatchNorm1d(1)), nn.BatchNorm1d(1)).to(
            here.device
        )
        found = ask(nested)
        missed = [one for one in (found if isinstance(found, nn.Module) else nested).modules() if not is_so(one)]
        yield "modules within a model that %s does not reach" % name, len(missed), 0


def _own_parameters(module: nn.Module) -> List[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _numbers_of_eight_bits(here: RankContext) -> Iterator[Answer]:
    """They are rounded, and what lies between two goes to the one whose last bit is zero."""
    given = torch.tensor([1.0625, 1.1875, 1.1, 0.9, -1.1, 448.0, 1.2], device=here.device)
    for name, right in (
        ("float8_e4m3fn", [1, 1.25, 1.125, 0.875, -1.125, 448, 1.25]),
        ("float8_e5m2", [1, 1.25, 1, 0.875, -1, 448, 1.25]),
    ):
        if hasattr(torch, name):  # torch 2.1
            yield "numbers that become %s" % name, given.to(getattr(torch, name)).float(), right


def _two_leaves(here: RankContext) -> List[torch.Tensor]:
    values = ([[1.0, -2.0], [3.0, 5.0]], [[4.0, 6.0], [-7.0, 2.0]])
    return [torch.tensor(one, device=here.device, requires_grad=True) for one in values]


def _kept_for_the_way_back(here: RankContext) -> Iterator[Answer]:
    one, other = _two_leaves(here)
    with torch.autograd.graph.save_on_cpu():
        (one * other).sum().backward()
    yield "a gradient by what was kept in the host's memory (save_on_cpu)", one.grad, other
    yield "the other one", other.grad, one
    one, other = _two_leaves(here)
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept + 1, lambda kept: kept * 2):
        found = one * other
    found.sum().backward()
    yield "a gradient by what hooks made of what was kept (saved_tensors_hooks)", one.grad, (other + 1) * 2


class _HeadAndPlaces(torch.autograd.Function):
    """Of two results only the first has a gradient."""

    @staticmethod
    def forward(given: torch.Tensor) -> Any:
        return given * 2, given.argmax(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        return upstream[0] * ctx.saved_tensors[0]


def _gradients_of_some(here: RankContext) -> Iterator[Answer]:
    one, other = _two_leaves(here)
    (one * other).sum().backward(inputs=[one])
    yield "backward(inputs=…) gives a gradient to these alone", [float(one.grad.sum()), other.grad is None], [5, True]
    one, other = _two_leaves(here)
    told: List[float] = []
    torch.autograd.graph.register_multi_grad_hook(
        (one, other), lambda slopes: told.append(float(sum(each.sum() for each in slopes)))
    )
    (one * other).sum().backward()
    yield "a hook on several gradients (register_multi_grad_hook)", told, [12]
    one, other = _two_leaves(here)
    found, places = _HeadAndPlaces.apply(one)
    found.sum().backward()
    yield (
        "a function with setup_context and mark_non_differentiable",
        [*one.grad.flatten().tolist(), places.requires_grad],
        [1, -2, 3, 5, False],
    )
    layer = nn.Linear(2, 2, bias=False).to(here.device)
    with torch.no_grad():
        layer.weight.copy_(other)
    layer.requires_grad_(False)
    one.grad = None
    layer(one).sum().backward()
    yield "a frozen layer (requires_grad_(False)) passes gradients on", one.grad, [-3, 8, -3, 8]
    yield "a frozen layer gets none", layer.weight.grad is None, True
    (slope, none) = torch.autograd.grad((one * 3).sum(), [one, other], allow_unused=True)
    yield "autograd.grad with allow_unused", [*slope.flatten().tolist(), none is None], [3, 3, 3, 3, True]
    with torch.inference_mode():
        still = one * 2
    with torch.set_grad_enabled(False):
        off = one * 2
    yield "inference_mode and set_grad_enabled(False) record nothing", [still.requires_grad, off.requires_grad], [False, False]
