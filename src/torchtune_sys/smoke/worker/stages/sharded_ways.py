"""Sharded training in low precision and over two dimensions, and what it is made of: tensors that are spread over ranks."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.agreement import Fault
from torchtune_sys.smoke.worker.context import RankContext, seldom_used_is_right, small_integers

_LAYER_INPUTS, _LAYER_OUTPUTS = 24, 16
_TOO_WIDE = 256.0
"""bfloat16 has 8 bits: it holds this, and nothing odd above it. Beside what the other ranks give it shows in which precision ranks add."""
_ROUNDED = 2.0**-18
"""Of float32, where the number of ranks is no power of two."""


def local_part(value: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor that is spread over ranks."""
    held = value.to_local() if hasattr(value, "to_local") else value
    return held.detach()


def sharded_in_other_ways(here: RankContext, shard: Callable[..., Any]) -> List[Fault]:
    """Return what is wrong. ``shard`` is torch's ``fully_shard``."""
    faults: List[Fault] = []
    policy = _low_precision(shard)
    if policy is not None and here.has_bfloat16() and here.world <= _TOO_WIDE:
        faults += _one_layer(
            here, shard, "in mixed precision (bfloat16, gradients added in float32)", (here.world,), mp_policy=policy
        )
    both = (2, here.world // 2) if here.world % 2 == 0 else (here.world, 1)
    if here.world > 1:
        faults += _one_layer(here, shard, "over %d replicas of %d parts (HSDP)" % both, both)
        faults += _one_layer(here, shard, "whose gradients two passes gather (set_requires_gradient_sync)", (here.world,), 2)
    return faults + _wrapped_layer(here) + _spread_tensors(here)


def _low_precision(shard: Callable[..., Any]) -> Optional[Any]:
    import sys

    policy = getattr(sys.modules[shard.__module__.partition("._fully_shard")[0]], "MixedPrecisionPolicy", None)
    return policy and policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _one_layer(
    here: RankContext, shard: Callable[..., Any], how: str, shape: Tuple[int, ...], passes: int = 1, **more: Any
) -> List[Fault]:
    """Take the gradient of one layer: in each of its rows it is what the rank asks for there times the one input that all have."""
    names = {"mesh_dim_names": ("replicas", "parts")} if len(shape) == 2 else {}
    mesh = torch.distributed.init_device_mesh(here.kind, shape, **names)
    layer = nn.Linear(_LAYER_INPUTS, _LAYER_OUTPUTS, bias=False)
    inputs = small_integers((1, _LAYER_INPUTS), 311, -1, 2)
    with torch.no_grad():
        layer.weight.copy_(small_integers((_LAYER_OUTPUTS, _LAYER_INPUTS), 312, -1, 2))
    layer.to(here.device)
    shard(layer, mesh=mesh, **more)
    if passes > 1 and not hasattr(layer, "set_requires_gradient_sync"):
        return []
    asked = [torch.full((_LAYER_OUTPUTS,), _TOO_WIDE)]
    asked += [small_integers((_LAYER_OUTPUTS,), 320 + rank, 1, 3) for rank in range(1, here.world)]
    for _ in range(passes - 1):
        layer.set_requires_gradient_sync(False)
        (layer(inputs.to(here.device)) * asked[here.rank].to(here.device)).sum().backward()
        layer.set_requires_gradient_sync(True)
    answer = layer(inputs.to(here.device))
    faults: List[Fault] = []
    if more and answer.dtype != torch.bfloat16:
        faults.append(("fsdp-step-wrong", "sharded %s: a layer answers in %s" % (how, str(answer.dtype)[6:])))
    (answer * asked[here.rank].to(here.device, answer.dtype)).sum().backward()
    parts, place = shape[-1], here.rank % shape[-1]
    each = -(-_LAYER_OUTPUTS // parts)
    wanted = passes * (sum(asked) / here.world)[:, None].double() * inputs.double()
    wanted = wanted[place * each : (place + 1) * each]
    gradient = layer.weight.grad
    found = None if gradient is None else local_part(gradient).cpu()
    if found is None or found.shape != wanted.shape or found.dtype != torch.float32:
        if wanted.numel():
            told = "none" if found is None else "%s of shape %s" % (str(found.dtype)[6:], tuple(found.shape))
            faults.append(
                ("fsdp-step-wrong", "sharded %s: the gradient here is %s, not float32 of %s" % (how, told, tuple(wanted.shape)))
            )
        return faults
    off = (found.double() - wanted).abs()
    if wanted.numel() and not float(off.max()) <= (0.0 if here.world & (here.world - 1) == 0 else _ROUNDED * 2 * _TOO_WIDE):
        at = int(off.argmax())
        words = (how, int((off > 0).sum()), off.numel(), float(found.flatten()[at]), float(wanted.flatten()[at]))
        faults.append(
            ("fsdp-step-wrong", "a step sharded %s: %d of %d elements of a gradient are wrong, one is %.9g, not %.9g" % words)
        )
    return faults


def _wrapped_layer(here: RankContext) -> List[Fault]:
    """Step with FullyShardedDataParallel (FSDP1), in whole numbers: a weight of one by the mean of what ranks ask for, each one more than the rank before."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    faults: List[Fault] = []
    wanted = 1 - (here.world + 1) / 2
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        layer = nn.Linear(_LAYER_INPUTS, _LAYER_OUTPUTS, bias=False)
        nn.init.ones_(layer.weight)
        wrapped = FullyShardedDataParallel(
            layer.to(here.device), sharding_strategy=strategy, device_id=here.device, use_orig_params=True
        )
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=1.0)
        (wrapped(torch.ones(1, _LAYER_INPUTS, device=here.device)) * (here.rank + 1)).sum().backward()
        norm = (here.world + 1) / 2 * (_LAYER_INPUTS * _LAYER_OUTPUTS) ** 0.5
        told = float(wrapped.clip_grad_norm_(2 * norm))  # which leaves all as it is
        if not abs(told - norm) <= _ROUNDED * norm:
            seen = "clip_grad_norm_ of FullyShardedDataParallel (FSDP1, %s) tells a norm of %.6g, where that of all parts is %.6g"
            faults.append(("clip-wrong", seen % (strategy.name, told, norm)))
        optimizer.step()
        with FullyShardedDataParallel.summon_full_params(wrapped):
            found = layer.weight.detach().to("cpu", copy=True).flatten()  # what is put together goes with this block
        off = found != wanted
        if bool(off.any()):
            words = (strategy.name, int(off.sum()), len(found), float(found[off][0]), wanted)
            seen = "after a step of FullyShardedDataParallel (FSDP1, %s) %d of %d weights are wrong, one is %g, not %g"
            faults.append(("fsdp-step-wrong", seen % words))
    return faults


def saved_in_other_ways(here: RankContext, folder: str) -> List[Fault]:
    """Return what is wrong of a checkpoint that is loaded into tensors cut otherwise, with numbers and words beside them, and of FSDP1's own ways."""
    return [*_cut_otherwise(here, folder), *_whole_of_wrapped(here)] if seldom_used_is_right() else []


def _differ(what: str, found: Any, wanted: torch.Tensor) -> List[Fault]:
    value = torch.as_tensor(found).detach().cpu()
    if value.shape == wanted.shape and torch.equal(value.double(), wanted.double()):
        return []
    shown = [" ".join("%g" % one for one in each.flatten().tolist()[:4]) for each in (value, wanted)]
    return [("sharded-checkpoint-differs", "%s: %s, where %s is right" % (what, *shown))]


def _cut_otherwise(here: RankContext, folder: str) -> List[Fault]:
    from torch.distributed import checkpoint
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = torch.distributed.init_device_mesh(here.kind, (here.world,))
    whole = small_integers((2 * here.world + 1, 3 * here.world), 332, -9, 10)
    rows = distribute_tensor(whole.to(here.device), mesh, [Shard(0)])
    checkpoint.save({"rows": rows, "plain": whole, "step": 7, "rates": [0.5, 0.25], "name": "run"}, checkpoint_id=folder)
    faults: List[Fault] = []
    for how, places in (("columns", [Shard(1)]), ("copies", [Replicate()]), ("rows", [Shard(0)])):
        empty = distribute_tensor(torch.zeros_like(whole).to(here.device), mesh, places)
        held: Dict[str, Any] = {"rows": empty, "plain": torch.zeros_like(whole), "step": 0, "rates": [0.0, 0.0], "name": ""}
        checkpoint.load(held, checkpoint_id=folder)
        faults += _differ("rows that are saved, and loaded as %s" % how, held["rows"].full_tensor(), whole)
        faults += _differ("a tensor that all ranks have, saved and loaded", held["plain"], whole)
        numbers = [float(held["step"]), *held["rates"], float(held["name"] == "run")]
        faults += _differ("numbers and words beside tensors, saved and loaded", numbers, torch.tensor([7, 0.5, 0.25, 1]))
    for what, factor in (
        ("rows that are saved, and loaded whole", 1),
        ("rows that are saved a second time under one name, and loaded", 2),
    ):
        if factor > 1:
            checkpoint.save({"rows": distribute_tensor(whole.to(here.device) * factor, mesh, [Shard(0)])}, checkpoint_id=folder)
        alone = {"rows": torch.zeros_like(whole)}
        checkpoint.load(alone, checkpoint_id=folder)
        faults += _differ(what, alone["rows"], whole * factor)
    return faults


def _whole_of_wrapped(here: RankContext) -> List[Fault]:
    """Check what FullyShardedDataParallel (FSDP1) hands over to a checkpoint, with what its optimizer remembers, and that it takes it again."""
    from torch.distributed import fsdp

    layer = nn.Linear(_LAYER_INPUTS, _LAYER_OUTPUTS, bias=False)
    wanted = small_integers((_LAYER_OUTPUTS, _LAYER_INPUTS), 336, -9, 10)
    with torch.no_grad():
        layer.weight.copy_(wanted)
    wrapped = fsdp.FullyShardedDataParallel(layer.to(here.device), device_id=here.device, use_orig_params=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.0, momentum=0.5)
    wrapped(torch.ones(1, _LAYER_INPUTS, device=here.device)).sum().backward()
    optimizer.step()
    with fsdp.FullyShardedDataParallel.state_dict_type(wrapped, fsdp.StateDictType.FULL_STATE_DICT):
        faults = _differ("the whole model of FSDP1 (FULL_STATE_DICT)", wrapped.state_dict()["weight"], wanted)
        speeds = fsdp.FullyShardedDataParallel.optim_state_dict(wrapped, optimizer)["state"]["weight"]["momentum_buffer"]
        faults += _differ("what FSDP1's optimizer remembers (optim_state_dict)", speeds, torch.ones_like(wanted))
        wrapped.load_state_dict({"weight": wanted * 2})
        faults += _differ("the whole model of FSDP1, loaded", wrapped.state_dict()["weight"], wanted * 2)
    return faults


def _parallel_layers(here: RankContext, mesh: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return what two layers give that are cut by their outputs and by their inputs, and what they give as a whole. Without a bias, of which each rank would add a share that rounds."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(
        nn.Linear(_LAYER_INPUTS, 2 * here.world, bias=False), nn.Linear(2 * here.world, _LAYER_OUTPUTS, bias=False)
    ).to(here.device)
    with torch.no_grad():
        for number, value in enumerate(model.parameters()):
            value.copy_(small_integers(tuple(value.shape), 335 + number, -1, 2))
        inputs = small_integers((3, _LAYER_INPUTS), 334, -1, 2).to(here.device)
        wanted = model(inputs).cpu()
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})(inputs), wanted


def _spread_tensors(here: RankContext) -> List[Fault]:
    """Tensors that are spread over ranks (DTensor), which FSDP2 and tensor parallel training are made of."""
    try:
        from torch.distributed import tensor as spread

        distribute, cut, copied = spread.distribute_tensor, spread.Shard, spread.Replicate
    except (ImportError, AttributeError):  # until torch 2.5
        return []
    mesh = torch.distributed.init_device_mesh(here.kind, (here.world,))
    whole = small_integers((2 * here.world + 1, 3 * here.world), 331, -9, 10)
    device = whole.to(here.device)
    rows = distribute(device, mesh, [cut(0)])
    columns = rows.redistribute(mesh, [cut(1)])
    product = distribute(device.t().contiguous(), mesh, [cut(1)]) @ rows
    part = (torch.chunk(whole, here.world, 0) + (whole[:0],) * here.world)[here.rank]
    answers: Dict[str, Tuple[torch.Tensor, torch.Tensor]] = {
        "a tensor's rows": (rows.to_local(), part),
        "rows that become columns": (columns.to_local(), torch.chunk(whole, here.world, 1)[here.rank]),
        "rows put together": (rows.full_tensor(), whole),
        "columns given to all": (columns.redistribute(mesh, [copied()]).to_local(), whole),
        "a product whose terms are on all ranks": (product.full_tensor(), whole.t() @ whole),
        "the sum of all": (rows.sum().full_tensor(), whole.sum()),
        "a sum over what is spread": (rows.sum(0).full_tensor(), whole.sum(0)),
    }
    answers["a model whose layers are cut (ColwiseParallel, RowwiseParallel)"] = _parallel_layers(here, mesh)
    for what, (found, wanted) in answers.items():
        if found.shape != wanted.shape or not torch.equal(found.detach().cpu(), wanted):
            seen = "tensors spread over ranks (DTensor), %s: %s, where %s is right"
            shown = [" ".join("%g" % one for one in value.flatten().tolist()[:4]) for value in (found.cpu(), wanted)]
            return [("dtensor-wrong", seen % (what, *shown))]
    return []
