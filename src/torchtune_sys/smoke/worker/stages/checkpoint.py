"""A training that is interrupted goes on from its checkpoint as if it had not been."""

from __future__ import annotations

import contextlib
import copy
import filecmp
import io
import mmap
import os
import random
import shutil
import tempfile
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, deterministic, torch_has_reached
from torchtune_sys.smoke.worker.grad_scaler import new_scaler
from torchtune_sys.smoke.worker.growth import keeps_nothing_of
from torchtune_sys.smoke.worker.models import TOKENS, SmallTransformer, loss_of, seeded, sentences
from torchtune_sys.smoke.worker.module_state import (
    directories_tell,
    far_places_are_apart,
    gaps_are_told,
    locks_hold,
    modules_resume,
)
from torchtune_sys.smoke.worker.stages.optimizers import EPOCHS_OF_SCHEDULE, schedules

_BEFORE, _AFTER = 3, 3
_SCHEDULED = 5
"""Steps of a schedule before it is saved: within its first period and beyond."""
_LARGE_RECORD = 1 << 18
"""Numbers: a mebibyte, which goes to the disk in other pieces than the small ones, each of which is less than a block of some file systems."""
_KEPT_RECORD = 5 << 17
"""Numbers: five of these checkpoints are more than what is left to the allocators (keeps_nothing_of)."""
_HUGE_RECORD = 3 << 20
"""12 MiB, as one embedding has: more than a buffer, or a piece of a network file system, holds."""


class Training:
    """All that a checkpoint is to hold: weights, the optimizer's memory, the schedule, the scaler, and the generators (for dropout)."""

    def __init__(self, here: RankContext, seed: int, optimizer: str = "AdamW") -> None:
        self.here = here
        seeded(seed)
        self.model = nn.Sequential(SmallTransformer(dropout=0.2), nn.BatchNorm1d(TOKENS)).to(here.device)  # with running means
        more = {"momentum": 0.9} if optimizer == "SGD" else {}
        held: Tuple[List[nn.Parameter], List[nn.Parameter]] = ([], [])
        for one in self.model.parameters():
            held[one.dim() < 2].append(one)
        groups = [{"params": held[0]}, {"params": held[1], "weight_decay": 0.0}]  # as most trainings: none for biases and norms
        self.optimizer = getattr(torch.optim, optimizer)(groups, lr=1e-2, weight_decay=0.01, **more)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.scaler = new_scaler(here, 2.0**8, 2)

    def train(self, first: int, count: int) -> List[float]:
        losses: List[float] = []
        for step in range(first, first + count):
            self.optimizer.zero_grad()
            loss = loss_of(self.model, sentences(32, step), self.here.device)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            losses.append(loss.item())
        torch.randn(1)  # normal numbers come in pairs: the generator keeps the other one
        return losses

    def state(self) -> Dict[str, Any]:
        held = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generator": torch.get_rng_state(),
        }
        if self.here.kind == "cuda":
            held["device generator"] = torch.cuda.get_rng_state(self.here.device)
        return held

    def restore(self, held: Dict[str, Any]) -> None:
        self.model.load_state_dict(held["model"])
        self.optimizer.load_state_dict(held["optimizer"])
        self.schedule.load_state_dict(held["schedule"])
        self.scaler.load_state_dict(held["scaler"])
        torch.set_rng_state(held["generator"])
        if self.here.kind == "cuda":
            torch.cuda.set_rng_state(held["device generator"], self.here.device)


def checkpoint_resumes(here: RankContext) -> None:
    """Check that training resumed from a checkpoint is bit for bit the same as without the interruption."""
    with deterministic(here), tempfile.TemporaryDirectory(prefix="checkpoint-", dir=here.scratch) as folder:
        _kinds_survive(os.path.join(folder, "kinds.pt"))
        directories_tell(folder)
        far_places_are_apart(folder)
        locks_hold(here, folder)
        modules_resume(os.path.join(folder, "module.pt"))
        gaps_are_told(here)
        _kept_by_nothing(here, os.path.join(folder, "again.pt"))
        _schedules_resume()
        _generators_resume()
        _averages_resume(here, os.path.join(folder, "averages.pt"))
        size = max(_resumes(here, optimizer, folder) for optimizer in ("AdamW", "SGD"))
    here.measure("checkpoint", size / 1e6, "MB")


_KINDS = (
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
_KINDS_OF_PAIRS = ("complex64", "complex128")
_BESIDE_TENSORS: Dict[str, Any] = {
    "epoch": 3, "loss": 1 / 3, "best": float("inf"), "seen": 1 << 70, "below": -5, "name": "müßig", "mixed": False, "nothing": None,
    "betas": (0.9, 0.999), "nested": {"rates": [1e-3, 1e-4], 7: {"step": 0}}, "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
}  # fmt: skip
"""What is saved beside weights."""


def _kinds_survive(path: str) -> None:
    """Check tensors of each kind, transposed ones, and two that share memory, as an embedding and the last layer do."""
    thirds = (torch.arange(-24, 24).float() / 3).view(6, 8)
    kinds = [getattr(torch, name) for name in _KINDS if hasattr(torch, name)]
    held = {str(kind)[6:]: thirds.to(kind) for kind in kinds}
    held.update({kind: torch.complex(thirds, -thirds.flip(0)).to(getattr(torch, kind)) for kind in _KINDS_OF_PAIRS})
    held.update(one=thirds[3, 5].clone(), none=thirds[:0].clone(), every_other=thirds[:, ::2])
    held.update(transposed=thirds.t(), tied=thirds, twin=thirds[2:], large=torch.arange(_LARGE_RECORD, dtype=torch.int32))
    write_checkpoint(held, path)
    in_memory = io.BytesIO()
    torch.save(held, in_memory)
    in_memory.seek(0)
    places: Tuple[Tuple[str, Any], ...] = (("a checkpoint", path), ("a checkpoint in memory (io.BytesIO)", in_memory))
    for place, file in places:
        _has_kept(place, torch.load(file, map_location="cpu", weights_only=True), held)
    beside = path + ".beside"
    write_checkpoint(_BESIDE_TENSORS, beside)
    found = torch.load(beside, map_location="cpu", weights_only=True)
    for name, wanted in _BESIDE_TENSORS.items():
        if repr(found.get(name)) != repr(wanted):
            seen = "%r, saved beside weights (%s), comes back from a checkpoint as %r"
            raise StageFailed("checkpoint-damaged", seen % (wanted, name, found.get(name)))
    for how, copied in (("shutil.copyfile", shutil.copyfile), ("copy_file_range, as cp does", _copied_by_the_kernel)):
        copy_of = "%s.%s" % (path, copied.__name__)
        copied(path, copy_of)
        if not filecmp.cmp(path, copy_of, shallow=False):
            raise StageFailed("checkpoint-damaged", "a copy of a checkpoint (%s) is not what it was made of" % how)
    huge = torch.arange(_HUGE_RECORD, dtype=torch.int32)
    alone = path + ".embedding"  # a second checkpoint under one name is another question
    write_checkpoint({"embedding": huge}, alone)
    for how, more in (("come back", {}), ("are mapped (mmap=True)", {"mmap": True}))[: 1 + torch_has_reached(2, 1)]:
        found = torch.load(alone, map_location="cpu", weights_only=True, **more)["embedding"]
        lost = int((found != huge).sum()) if found.shape == huge.shape else huge.numel()
        if lost:
            seen = "%d of %d elements of a tensor of %d MiB %s from a checkpoint as others"
            raise StageFailed("checkpoint-damaged", seen % (lost, huge.numel(), huge.nbytes >> 20, how))


def _copied_by_the_kernel(source: str, target: str) -> None:
    """Copy within the kernel, which may leave it to the file system; where that refuses, as it may, there is nothing to see."""
    with contextlib.suppress(OSError, AttributeError), open(source, "rb") as given, open(target, "wb") as taken:
        while os.copy_file_range(given.fileno(), taken.fileno(), 1 << 30):
            pass
        return
    shutil.copyfile(source, target)


def _has_kept(place: str, found: Dict[str, torch.Tensor], held: Dict[str, torch.Tensor]) -> None:
    for name, wanted in held.items():
        same = found[name].dtype == wanted.dtype and found[name].shape == wanted.shape
        if not same or not torch.equal(*(one.reshape(-1).contiguous().view(torch.uint8) for one in (found[name], wanted))):
            raise StageFailed("checkpoint-damaged", "a tensor (%s) comes back from %s as another" % (name, place))
    found["tied"].zero_()
    if bool(found["twin"].any()):
        raise StageFailed("checkpoint-damaged", "two tensors that share memory come back from %s as two apart" % place)


def _kept_by_nothing(here: RankContext, path: str) -> None:
    weight = torch.ones(_KEPT_RECORD)

    def saved_and_read() -> None:
        torch.save({"weight": weight}, path)
        torch.load(path, map_location="cpu", weights_only=True)

    keeps_nothing_of(here, "checkpoints", saved_and_read, 5)


def _schedules_resume() -> None:
    """Check that each schedule goes on from where it was saved, at the rates that it would have had."""

    def begun(make: Callable[[torch.optim.Optimizer], Any]) -> Tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        return optimizer, make(optimizer)

    def rates(optimizer: torch.optim.Optimizer, schedule: Any, count: int) -> List[float]:
        found = []
        for _ in range(count):
            optimizer.step()
            schedule.step()
            found.append(float(optimizer.param_groups[0]["lr"]))
        return found

    kept, wanted = {}, {}
    for name, make, _ in schedules():
        optimizer, schedule = begun(make)
        rates(optimizer, schedule, _SCHEDULED)
        kept[name] = copy.deepcopy({"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()})
        wanted[name] = rates(optimizer, schedule, EPOCHS_OF_SCHEDULE - _SCHEDULED)
    for name, make, _ in schedules():
        optimizer, schedule = begun(make)
        optimizer.load_state_dict(kept[name]["optimizer"])
        schedule.load_state_dict(kept[name]["schedule"])
        found = rates(optimizer, schedule, EPOCHS_OF_SCHEDULE - _SCHEDULED)
        if not max(abs(one - other) for one, other in zip(found, wanted[name])) <= 1e-12:
            words = (name, *(" ".join("%.4g" % rate for rate in each[:4]) for each in (found, wanted[name])))
            raise StageFailed("resume-differs", "%s that is loaded goes on with the rates %s, not %s" % words)


def _generators_resume() -> None:
    """Check that a generator of its own, as a loader has it, goes on from the state that it is given."""
    through, loaded = torch.Generator().manual_seed(7), torch.Generator().manual_seed(8)
    torch.rand(3, generator=through)
    loaded.set_state(through.get_state())
    if not torch.equal(*(torch.rand(3, generator=one) for one in (through, loaded))):
        raise StageFailed("resume-differs", "a generator (torch.Generator) that is given a state goes on as another")
    before = random.getstate()
    drawn = random.random()
    random.setstate(before)
    if random.random() != drawn:
        raise StageFailed("resume-differs", "Python's random goes on as another once it is given a state (random.setstate)")


def _averages_resume(here: RankContext, path: str) -> None:
    """Check that a running average of weights goes on as it was saved."""
    model = nn.Linear(2, 2).to(here.device)
    through, loaded = (torch.optim.swa_utils.AveragedModel(model) for _ in range(2))

    def follow(averaged: Any, value: float) -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(value)
        averaged.update_parameters(model)

    for value in (1.0, 2.0):
        follow(through, value)
    write_checkpoint(through.state_dict(), path)
    loaded.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    for averaged in (through, loaded):
        follow(averaged, 6.0)
    lost = differing_leaves(loaded.state_dict(), through.state_dict())
    if lost:
        seen = "a running average of weights (AveragedModel) that is loaded goes on as another; what differs: %s"
        raise StageFailed("resume-differs", seen % ", ".join(lost))


def _resumes(here: RankContext, optimizer: str, folder: str) -> int:
    """Bytes of the checkpoint."""
    path = os.path.join(folder, "%s.pt" % optimizer)
    through = Training(here, 4, optimizer)
    through.train(0, _BEFORE)
    write_checkpoint(through.state(), path)
    size = os.path.getsize(path)
    held = torch.load(path, map_location="cpu", weights_only=True)
    wanted_losses = through.train(_BEFORE, _AFTER)
    wanted = through.state()
    if optimizer == "AdamW":  # once: it is the file that is asked, whatever the optimizer
        _replaces(path, held, wanted)
        _can_be_mapped(path, held)  # before training goes on: an optimizer trains on with the very tensors that it is given
    resumed = Training(here, 5, optimizer)  # another seed: whatever is not restored differs
    saved = copy.deepcopy(held)
    resumed.restore(held)
    lost = differing_leaves(resumed.state(), saved)
    if lost:  # before training carries it on into all weights
        seen = "right after loading (%s) %d part(s) of the state are not what was saved: %s"
        raise StageFailed("resume-differs", seen % (optimizer, len(lost), ", ".join(lost[:6])))
    losses = resumed.train(_BEFORE, _AFTER)
    _same("resuming (%s)" % optimizer, resumed.state(), wanted, wanted_losses, losses)
    return size


def _replaces(path: str, first: Dict[str, Any], second: Dict[str, Any]) -> None:
    """Check that a second checkpoint takes the place of the first under its one name, written over it or renamed."""
    write_checkpoint(second, path)
    _reads_as(path, second, first, "saved second under one name")
    write_checkpoint(first, path + ".new")
    os.replace(path + ".new", path)
    _reads_as(path, first, second, "renamed over another")


def _can_be_mapped(path: str, held: Dict[str, Any]) -> None:
    """Large checkpoints are not read but mapped (``torch.load(mmap=True)``, safetensors), which some file systems refuse."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            mapped[-1]
    except OSError as error:
        seen = "a checkpoint cannot be mapped (mmap: %s): torch.load(mmap=True) and safetensors fail there" % error.strerror
        raise StageFailed(
            "checkpoint-disk-without-mmap", seen, "use another directory (--scratch), or FUSE without direct_io"
        ) from error
    if torch_has_reached(2, 1):
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if differing_leaves(found, held):
            raise StageFailed("checkpoint-damaged", "what was saved is not what is mapped")
        for value in found["model"].values():
            value.zero_()
        if differing_leaves(torch.load(path, map_location="cpu", weights_only=True), held):
            seen = "what is written into weights that are mapped (torch.load(mmap=True)), as each step does, changes the checkpoint itself"
            raise StageFailed("checkpoint-damaged", seen, "look for torch.serialization.set_default_mmap_options(MAP_SHARED)")


def _reads_as(path: str, wanted: Dict[str, Any], before: Dict[str, Any], how: str) -> None:
    found = torch.load(path, map_location="cpu", weights_only=True)
    if not differing_leaves(found, wanted):
        return
    if not differing_leaves(found, before):
        raise StageFailed("checkpoint-stale", "what was %s reads as what was there before" % how)
    raise StageFailed("checkpoint-damaged", "what was %s is not what is read" % how)


def _same(how: str, found: Dict[str, Any], wanted: Dict[str, Any], wanted_losses: List[float], losses: List[float]) -> None:
    differing = differing_leaves(found, wanted)
    if losses != wanted_losses or differing:
        raise StageFailed(
            "resume-differs",
            "after %s the losses are %s, without interruption %s; what differs at the end: %s"
            % (how, losses, wanted_losses, ", ".join(differing[:6]) or "nothing"),
        )


def differing_leaves(one: Any, other: Any, name: str = "") -> List[str]:
    """Return the names of what differs in any bit between two trees of dictionaries, lists, tensors and numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = ["%s.%s" % (name, key) for key in one.keys() ^ other.keys()]
        for key in one.keys() & other.keys():
            found += differing_leaves(one[key], other[key], "%s.%s" % (name, key) if name else str(key))
        return sorted(found)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return [leaf for number, pair in enumerate(zip(one, other)) for leaf in differing_leaves(*pair, "%s.%d" % (name, number))]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if torch.equal(one.to("cpu"), other.to("cpu")) else [name]
    return [] if one == other else [name]


def write_checkpoint(state: Dict[str, Any], path: str) -> None:
    """``torch.save``, as training does. Raises OSError with the system's reason where there is one: torch's own message about a
    full disk ("unexpected pos 64 vs 0") does not name it."""
    try:
        torch.save(state, path)
        if not os.path.exists(path):
            raise StageFailed("checkpoint-stale", "torch.save has come back, and the file that it was to write is not there")
        with open(path, "rb+") as written:
            os.fsync(written.fileno())
    except Exception as error:
        _raise_what_the_disk_says(path, error)
        raise


def _raise_what_the_disk_says(path: str, error: Exception) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
    try:
        with open(path, "wb") as probe:
            probe.write(bytes(1 << 20))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as reason:
        words = "%s%s (torch: %s)" % (reason.strerror, _owners_rights_taken(), str(error).splitlines()[0])
        raise OSError(reason.errno, words, path) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    if isinstance(error, PermissionError) and _owners_rights_taken():
        raise OSError(error.errno, "%s%s" % (error.strerror, _owners_rights_taken()), path) from error


def _owners_rights_taken() -> str:
    """Return words on a umask that takes from whoever makes a file or a directory their own rights to it. To ask for it by umask(2) would set it."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:") and int(line.split()[1], 8) & 0o700:
                return "; the umask is %s, which takes the owner's own rights to what is made" % line.split()[1]
    return ""
