"""Parameters that each rank holds a part of: a step with them, and checkpoints of them."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from typing import Any, Callable, Dict, List, Tuple

import torch

from torchtune_sys.smoke.worker.agreement import Fault, bits_of, judge, tell_all
from torchtune_sys.smoke.worker.context import (
    QUICK,
    RankContext,
    Skipped,
    StageFailed,
    gloo_scatters_by_operation,
    repeatable,
    torch_has_reached,
)
from torchtune_sys.smoke.worker.exchange_names import SCATTERS, named_now
from torchtune_sys.smoke.worker.integers import (
    BATCH,
    STEP_SIZE,
    IntegerNet,
    furthest,
    gradients_alone,
    integer_batch,
    linear_loss,
)
from torchtune_sys.smoke.worker.rendezvous_store import refuse_strangers
from torchtune_sys.smoke.worker.stages.pipelines import pipelines_are_right
from torchtune_sys.smoke.worker.stages.sharded_ways import local_part, saved_in_other_ways, sharded_in_other_ways

_SHARD_WIDTH = 64
_SHARD_SEED = 31
_AWAY_GATHERED = 2.0**-12
_NORM_OFF = 2.0**-12
_Pair = Tuple[torch.nn.Module, torch.optim.Optimizer]


def _sharder(here: RankContext) -> Callable[..., Any]:
    """torch's ``fully_shard`` (FSDP2). Raises Idle."""
    if here.shared:
        raise Skipped("the ranks share a GPU and talk over gloo, which FSDP does not use with GPUs")
    if not hasattr(torch.distributed, "init_device_mesh"):
        raise Skipped("torch %s lacks FSDP2" % torch.__version__)
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # until torch 2.5
        try:
            from torch.distributed._composable.fsdp import fully_shard
        except ImportError:
            raise Skipped("torch %s lacks FSDP2" % torch.__version__) from None
        if here.kind == "cpu":
            raise Skipped("FSDP2 of torch %s is for GPUs only" % torch.__version__) from None
    if here.kind == "cpu":
        _cpu_has_what_it_takes()
    return fully_shard


def _cpu_has_what_it_takes() -> None:
    """Raise Skipped where what FSDP is made of never worked on the CPU in this release: then sharded training fails there, whatever this host is like."""
    stream = getattr(torch.cpu, "current_stream", lambda: None)()
    if not hasattr(stream, "record_event"):
        raise Skipped("torch %s lacks record_event on the CPU's streams, which FSDP needs" % torch.__version__)
    world = torch.distributed.get_world_size()
    mean, given = torch.zeros(2), torch.full((2 * world,), float(world))
    scatter = named_now(SCATTERS)[0]
    try:
        scatter(mean, given, op=torch.distributed.ReduceOp.AVG)
    except (RuntimeError, ValueError):
        return  # refused, not wrong: FSDP then does without it, or says so
    if world > 1 and float(mean[0]) == float(world * world):
        total = torch.zeros(2)
        scatter(total, given)
        if float(total[0]) != float(world * world):
            words = "reduce_scatter of a %g from each of %d ranks gives %g, with AVG %g"
            raise StageFailed("collective-wrong", words % (world, world, float(total[0]), float(mean[0])))
        seen = "gloo of torch %s answers reduce_scatter (AVG) with the sum, which FSDP takes for the mean" % torch.__version__
        if gloo_scatters_by_operation():
            raise StageFailed("fsdp-step-wrong", seen)
        raise Skipped("%s (pytorch/pytorch#162338)" % seen)


def _sharded_net(here: RankContext, seed: int) -> IntegerNet:
    shard = _sharder(here)
    mesh = torch.distributed.init_device_mesh(here.kind, (here.world,))
    net = IntegerNet(seed, _SHARD_WIDTH).to(here.device)
    for layer in net.children():
        shard(layer, mesh=mesh)
    shard(net, mesh=mesh)
    return net


def _rows(here: RankContext, rows: int) -> Tuple[int, int]:
    """First and last of the rows that belong to this rank: equal parts, the last ones smaller."""
    each = -(-rows // here.world)
    return min(rows, here.rank * each), min(rows, (here.rank + 1) * each)


def sharded_step_is_right(here: RankContext) -> None:
    """Check that each rank holds only its shard of each parameter, and that a step matches one process with all the data."""
    net = _sharded_net(here, _SHARD_SEED)
    first = IntegerNet(_SHARD_SEED, _SHARD_WIDTH)
    faults = _holds_its_rows(here, "before", net, dict(first.named_parameters()))
    optimizer = torch.optim.SGD(net.parameters(), lr=STEP_SIZE)
    inputs, targets = (part.to(here.device) for part in integer_batch(here.rank, 0, _SHARD_WIDTH))
    outputs = net(inputs)
    faults = faults or _holds_no_more(here, "between the pass forward and the one back", net, dict(first.named_parameters()))
    linear_loss(outputs, targets).backward()
    every = [integer_batch(rank, 0, _SHARD_WIDTH) for rank in range(here.world)]
    wanted = gradients_alone(first, every, BATCH * here.world)
    gradients = {name: local_part(value.grad) for name, value in net.named_parameters() if value.grad is not None}
    faults += _part_is_right(here, "gradient of ", gradients, wanted)
    optimizer.step()
    after = {name: value.detach().double() - STEP_SIZE * wanted[name] for name, value in first.named_parameters()}
    faults += _holds_its_rows(here, "after", net, after)
    faults += _gathers_what_the_step_left(net, inputs, after)
    faults += _clips_as_a_whole(here, net, wanted)
    del net, optimizer
    faults += sharded_in_other_ways(here, _sharder(here))
    if here.level != QUICK and not any(tell_all(here, "wrong" if faults else "")):
        faults += pipelines_are_right(here)
    judge(here, faults)


def _gathers_what_the_step_left(net: IntegerNet, inputs: torch.Tensor, after: Dict[str, torch.Tensor]) -> List[Fault]:
    """Check that the next pass takes the weights of all ranks as they are now. A step moves the output by more than a hundredth of its largest element; rounding is below 2**-18."""
    alone = IntegerNet(_SHARD_SEED, _SHARD_WIDTH).double()
    with torch.no_grad():
        for name, value in alone.named_parameters():
            value.copy_(after[name])
        found, wanted = net(inputs).cpu().double(), alone(inputs.cpu().double())
    off = float((found - wanted).abs().max()) / float(wanted.abs().max())
    if off <= _AWAY_GATHERED:
        return []
    seen = "after the step the layers compute with other weights than those that it left: their output is off by %.3g of its largest element"
    return [("fsdp-step-wrong", seen % off)]


def _holds_its_rows(here: RankContext, when: str, net: IntegerNet, wanted: Dict[str, torch.Tensor]) -> List[Fault]:
    held = {name: local_part(value) for name, value in net.named_parameters()}
    whole = {name: value.detach().double() for name, value in wanted.items()}
    return _holds_no_more(here, "%s the step" % when, net, wanted) or _part_is_right(here, "%s the step " % when, held, whole)


def _holds_no_more(here: RankContext, when: str, net: IntegerNet, wanted: Dict[str, torch.Tensor]) -> List[Fault]:
    """Compare how much of each parameter this rank holds with its part. Layers that are sharded by themselves let the whole go after their forward pass, too
    (``reshard_after_forward``, on by default but for the root), or a model that only fits in parts does not fit."""
    held = {name: local_part(value) for name, value in net.named_parameters()}
    for name, value in wanted.items():
        first, last = _rows(here, value.shape[0])
        if held[name].numel() != (last - first) * value[0].numel():
            figures = (when, here.rank, held[name].numel(), value.numel(), name, (last - first) * value[0].numel())
            return [("fsdp-not-sharded", "%s rank %d holds %d of the %d elements of %s, its part are %d" % figures)]
    return []


def _clips_as_a_whole(here: RankContext, net: IntegerNet, wanted: Dict[str, torch.Tensor]) -> List[Fault]:
    """Check that the norm is that of all parts together, on each rank. Rounding is far below the bound; a part that is left out is far above it."""
    norm = sum(float((value**2).sum()) for value in wanted.values()) ** 0.5
    found = torch.nn.utils.clip_grad_norm_(net.parameters(), norm / 2)
    told = float(found.full_tensor() if hasattr(found, "full_tensor") else found)
    gradients = [local_part(value.grad).double() for value in net.parameters() if value.grad is not None]
    left = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
    own = sum(float((value[slice(*_rows(here, value.shape[0]))] ** 2).sum()) for value in wanted.values()) ** 0.5
    if abs(told - norm) <= _NORM_OFF * norm and abs(left - own / 2) <= _NORM_OFF * norm:
        return []
    words = (norm, norm / 2, told, left, own / 2)
    return [
        ("clip-wrong", "sharded gradients of norm %.6g, clipped at %.6g: told %.6g; the part here has %.6g, not %.6g" % words)
    ]


def _part_is_right(here: RankContext, what: str, held: Dict[str, torch.Tensor], wanted: Dict[str, torch.Tensor]) -> List[Fault]:
    own = {name: value[slice(*_rows(here, value.shape[0]))] for name, value in wanted.items()}
    own = {name: value for name, value in own.items() if value.numel()}
    missing = [name for name, value in own.items() if name not in held or held[name].shape != value.shape]
    if missing:
        return [("fsdp-step-wrong", "%s%s is missing or of another shape" % (what, ", ".join(missing)))]
    wrong = furthest(here, held, own)
    return [("fsdp-step-wrong", "%s%s" % (what, wrong))] if wrong else []


def sharded_checkpoint_resumes(here: RankContext) -> None:
    """Check that a checkpoint written by all ranks is restored to the last bit, and that training continues unchanged."""
    try:
        from torch.distributed.checkpoint import state_dict
    except ImportError:  # until torch 2.2
        raise Skipped("torch %s lacks torch.distributed.checkpoint.state_dict" % torch.__version__) from None
    before = _being_trained(here, _SHARD_SEED)
    _adam_step(here, before, 0)
    refuse_strangers(here)  # torch's ranks unpickle what they tell each other of a checkpoint
    folder = _folder_of_all(here)
    try:
        size = _write(here, state_dict, before, folder)
        after = _being_trained(here, _SHARD_SEED + 1)
        _read(here, state_dict, after, folder)
        faults = _same_training("loaded", before, after)
        with repeatable(here):
            _adam_step(here, before, 1)
            _adam_step(here, after, 1)
        faults += _same_training("trained on", before, after)
        if here.level != QUICK and not any(tell_all(here, "wrong" if faults else "")):
            faults += _gathers_the_whole(state_dict, before[0])
            otherwise = functools.partial(saved_in_other_ways, here, os.path.join(folder, "otherwise"))
            beside = functools.partial(_saved_beside_training, here, before[0], after[0], os.path.join(folder, "beside"))
            faults += _telling_why(here, otherwise) + _telling_why(here, beside)
        judge(here, faults)
        here.measure("written", size / 2**20, "MiB")
    finally:
        if here.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _write(here: RankContext, state_dict: Any, training: _Pair, folder: str) -> int:
    """Bytes that were written."""
    from torch.distributed import checkpoint

    model, optimizer = state_dict.get_state_dict(*training)
    _telling_why(here, lambda: checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder))
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


def _read(here: RankContext, state_dict: Any, training: _Pair, folder: str) -> None:
    from torch.distributed import checkpoint

    model, optimizer = state_dict.get_state_dict(*training)
    held = {"model": model, "optimizer": optimizer}
    _telling_why(here, lambda: checkpoint.load(held, checkpoint_id=folder))
    state_dict.set_state_dict(*training, model_state_dict=held["model"], optim_state_dict=held["optimizer"])


def _gathers_the_whole(state_dict: Any, net: torch.nn.Module) -> List[Fault]:
    """Check that the model which is gathered from its shards, to be saved as one, is what the shards put together by themselves give."""
    options = state_dict.StateDictOptions(full_state_dict=True)
    found = state_dict.get_model_state_dict(net, options=options)
    wanted = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in net.state_dict().items()}
    wrong = [name for name, value in wanted.items() if name not in found or not torch.equal(found[name], value)]
    if not wrong:
        return []
    seen = "gathered as a whole (full_state_dict): %d of %d tensors are not what their shards are, such as %s"
    return [("sharded-checkpoint-differs", seen % (len(wrong), len(wanted), wrong[0]))]


def _saved_beside_training(here: RankContext, net: torch.nn.Module, other: torch.nn.Module, folder: str) -> List[Fault]:
    """Check that a checkpoint which is written while training goes on (async_save) is what the model was when that was asked for, and loads into another."""
    from torch.distributed import checkpoint

    on_cpu = torch.device("cpu") in getattr(torch.distributed.group.WORLD, "_device_types", ())
    if not (torch_has_reached(2, 13) and on_cpu):  # 2.6 does not copy what is on the CPU; NCCL alone refuses it
        return []

    def saved() -> None:
        told = checkpoint.async_save({"model": net.state_dict()}, checkpoint_id=folder)
        with torch.no_grad():
            for value in net.parameters():
                local_part(value).add_(1)
        getattr(told, "upload_completion", told).result()

    wanted, found = _weights_held(net), {"model": other.state_dict()}
    _telling_why(here, saved)
    _telling_why(here, lambda: checkpoint.load(found, checkpoint_id=folder))
    other.load_state_dict(found["model"])
    return _same_parts("saved while training went on (async_save), and loaded", wanted, _weights_held(other))


def _being_trained(here: RankContext, seed: int) -> _Pair:
    """Sharded where torch can, else whole on each rank."""
    try:
        net: torch.nn.Module = _sharded_net(here, seed)
    except Skipped:
        net = IntegerNet(seed, _SHARD_WIDTH).to(here.device)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def _adam_step(here: RankContext, training: _Pair, turn: int) -> None:
    net, optimizer = training
    inputs, targets = (part.to(here.device) for part in integer_batch(0, turn, _SHARD_WIDTH))
    optimizer.zero_grad()
    linear_loss(net(inputs), targets).backward()
    optimizer.step()


def _same_training(when: str, one: _Pair, other: _Pair) -> List[Fault]:
    return _same_parts(when, _parts_held(*one), _parts_held(*other))


def _same_parts(when: str, first: Dict[str, str], second: Dict[str, str]) -> List[Fault]:
    differing = [name for name in first if first[name] != second.get(name)]
    if not differing:
        return []
    seen = "%s: %d of %d tensors are not what they were, such as %s" % (when, len(differing), len(first), differing[0])
    return [("sharded-checkpoint-differs", seen)]


def _parts_held(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, str]:
    """Digests of this rank's parts of the weights and of what the optimizer remembers of them."""
    held = _weights_held(net)
    for name, value in net.named_parameters():
        for key, memory in sorted(optimizer.state[value].items()):
            held["%s of %s" % (key, name)] = bits_of([local_part(torch.as_tensor(memory))])
    return held


def _weights_held(net: torch.nn.Module) -> Dict[str, str]:
    return {name: bits_of([local_part(value)]) for name, value in net.state_dict().items()}


def _folder_of_all(here: RankContext) -> str:
    """Make a new directory that all ranks see. Raises Idle where they do not share one."""
    told = ""
    if here.rank == 0:
        try:
            told = tempfile.mkdtemp(prefix="sharded-", dir=here.scratch)
        except OSError as error:
            told = "!%s: %s" % (type(error).__name__, error)
    folder = tell_all(here, told)[0]
    if folder.startswith("!"):
        raise StageFailed("", folder[1:])
    blind = [str(rank) for rank, sees in enumerate(tell_all(here, str(os.path.isdir(folder)))) if sees != "True"]
    if blind:
        raise Skipped(
            "ranks %s do not see %s: a sharded checkpoint needs a place that all hosts share (--scratch)"
            % (", ".join(blind), folder)
        )
    return folder


def _telling_why(here: RankContext, work: Callable[[], Any]) -> Any:
    """torch's exception is no Exception, and says what happened between pages of traces."""
    try:
        return work()
    except BaseException as error:
        if not hasattr(error, "failures"):
            raise
        first = next((each[0] for each in error.failures.values() if isinstance(each[0], Warning)), None)
        if first is not None:
            raise first from error
        causes = ["rank %d: %s: %s" % (rank, type(each[0]).__name__, each[0]) for rank, each in sorted(error.failures.items())]
        raise StageFailed("", "the checkpoint cannot be written or read: %s" % "; ".join(causes)) from error
