"""What a model's state holds beside the numbers of its weights, and what a directory tells of files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Any, List

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, torch_has_reached

_ELSEWHERE_LOCKED = (
    "mount it with locks (Lustre: flock; NFS: without nolock), or put caches on a local disk (HF_HOME, TORCHINDUCTOR_CACHE_DIR)"
)


_FAR_PLACES = (0, 1 << 26, (1 << 31) + 4099, (1 << 32) + 8209)


class _Scaled(nn.Module):
    """A layer with all that a state may hold: a weight that trains and one that is frozen, a buffer that is saved and one that is not, and what is no tensor."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.trains, self.frozen = (
            nn.Parameter(torch.full((2,), first)),
            nn.Parameter(torch.full((2,), first), requires_grad=False),
        )
        self.register_buffer("steps", torch.tensor(int(first)))
        self.register_buffer("passing", torch.full((2,), first), persistent=False)
        self.scales = {"amax": first}

    def get_extra_state(self) -> Any:
        return self.scales

    def set_extra_state(self, state: Any) -> None:
        self.scales = state


def modules_resume(path: str) -> None:
    """Check that a module that is saved, as its state and whole, comes back with all that it holds. Raises StageFailed."""
    first, loaded = nn.Sequential(_Scaled(1.0)), nn.Sequential(_Scaled(2.0))
    torch.save(first.state_dict(), path)
    loaded.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    torch.save(list(first.parameters()), path + ".parameters")
    trains, frozen = torch.load(path + ".parameters", map_location="cpu", weights_only=True)
    found: Any = loaded[0]
    for what, right in (
        ("its weights", float(found.trains.sum() + found.frozen.sum()) == 4.0),
        ("a buffer of whole numbers", found.steps.dtype == torch.int64 and int(found.steps) == 1),
        ("a buffer that is not to be saved (persistent=False)", float(found.passing.sum()) == 4.0),
        ("what it holds beside tensors (get_extra_state)", found.scales == {"amax": 1.0}),
        ("which of its weights train (requires_grad)", (found.trains.requires_grad, found.frozen.requires_grad) == (True, False)),
        (
            "which of the parameters that are saved by themselves train",
            (trains.requires_grad, frozen.requires_grad) == (True, False),
        ),
        ("that parameters are parameters", isinstance(trains, nn.Parameter) and isinstance(frozen, nn.Parameter)),
    ):
        if not right:
            raise StageFailed("checkpoint-damaged", "a module that is loaded from a checkpoint loses %s" % what)


def gaps_are_told(here: RankContext) -> None:
    """Check that what does not fit is refused, unless one says that it need not, and that what fits is taken in the model's own precision."""
    deep = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), deep).to(here.device)
    whole = model.state_dict()
    lacking, lacking_deep = ({name: value for name, value in whole.items() if name != left} for left in ("0.bias", "2.0.0.bias"))
    row = whole["0.weight"][:1]  # of which strict=False says nothing: it is for keys
    for what, held, strict in (
        ("lacks a weight", lacking, True),
        ("lacks a weight of a layer within others", lacking_deep, True),
        ("has a weight too many", {**whole, "3.weight": whole["0.weight"]}, True),
        ("has a weight too many within others", {**whole, "2.0.1.weight": whole["0.weight"]}, True),
        *(
            ("has a weight of another shape %s" % [*one.shape], {**whole, "0.weight": one}, False)
            for one in (row, row[0], row[:, :1])
        ),
    ):
        with contextlib.suppress(RuntimeError):
            model.load_state_dict(held, strict=strict)
            raise StageFailed("checkpoint-keys-ignored", "load_state_dict says nothing where a checkpoint %s" % what)
    told = model.load_state_dict(lacking, strict=False)
    if told.missing_keys != ["0.bias"]:
        raise StageFailed(
            "checkpoint-keys-ignored", "load_state_dict(strict=False) tells of %s, not of 0.bias" % told.missing_keys
        )
    thirds = torch.arange(6, device=here.device).view(2, 3) / 3
    narrow = nn.Linear(3, 2, bias=False).to(here.device, torch.bfloat16)
    narrow.load_state_dict({"weight": thirds})
    if narrow.weight.dtype != torch.bfloat16 or not torch.equal(narrow.weight.detach(), thirds.bfloat16()):
        raise StageFailed("checkpoint-damaged", "weights of float32 that a model of bfloat16 loads are not those, rounded")
    if torch_has_reached(2, 1):
        narrow.load_state_dict({"weight": thirds}, assign=True)
        taken = narrow.weight
        if taken.data_ptr() != thirds.data_ptr() or taken.dtype != thirds.dtype or not isinstance(taken, nn.Parameter):
            seen = (
                "load_state_dict(assign=True) leaves a model its own tensors, where those that are loaded are to take their place"
            )
            raise StageFailed("checkpoint-damaged", seen)


def directories_tell(folder: str) -> None:
    """Check that a directory tells of a file at once, and no more once it is gone: who looks for the last checkpoint lists it. Raises StageFailed."""
    told: List[bool] = []
    path = os.path.join(folder, "listed")
    for change in ("nothing", "written", "renamed", "removed"):
        if change == "written":
            with open(path, "wb"):
                pass
        elif change == "renamed":
            os.rename(path, path + ".last")
        elif change == "removed":
            os.unlink(path + ".last")
        names, entries = os.listdir(folder), [entry.name for entry in os.scandir(folder)]
        told += ["listed" in names, "listed.last" in names, "listed" in entries, "listed.last" in entries]
    if told != [False] * 4 + [True, False] * 2 + [False, True] * 2 + [False] * 4:
        seen = "a directory does not tell at once which files were written, renamed and removed there: who looks for the last checkpoint finds another"
        raise StageFailed("checkpoint-stale", seen)


def far_places_are_apart(folder: str) -> None:
    """Check that what is written beyond 2 and 4 GiB of a file lies there: large checkpoints are as long. Asked only where places that were never written take no room on the
    disk; what is refused (EFBIG) says so. Raises StageFailed."""
    path = os.path.join(folder, "far")
    with contextlib.suppress(OSError), open(path, "wb+") as file:
        for place in _FAR_PLACES:
            os.pwrite(file.fileno(), b"%020d" % place, place)
            if place and not 0 < os.fstat(file.fileno()).st_blocks * 512 <= _FAR_PLACES[1] // 2:
                break  # what lies between is written, too, or that is not told
        else:
            found = [os.pread(file.fileno(), 20, place) for place in _FAR_PLACES]
            wrong = [place for place, held in zip(_FAR_PLACES, found) if held != b"%020d" % place]
            if wrong or os.fstat(file.fileno()).st_size != _FAR_PLACES[-1] + 20:
                words = (wrong[0] if wrong else _FAR_PLACES[-1], os.fstat(file.fileno()).st_size)
                seen = "of a file of more than 4 GiB what was written at place %d is not what is read there (its size is told as %d): a large checkpoint is spoiled"
                raise StageFailed("checkpoint-damaged", seen % words, "use another directory (--scratch), or a newer mount of it")
    with contextlib.suppress(OSError):
        os.unlink(path)


def locks_hold(here: RankContext, folder: str) -> None:
    """Check that a lock on a file is given and shuts others out: caches of datasets, hubs and compilers rely on it. Where this file system alone has none (flock(2): ENOLCK,
    ENOSYS and EOPNOTSUPP; Lustre and NFS may be mounted so on purpose), that is a remark, since caches may lie elsewhere. Raises StageFailed."""
    path = os.path.join(folder, "locked")
    with open(path, "wb") as file, open(path, "wb") as other:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            seen = "a file below %s cannot be locked (flock: %s): datasets, hubs and torch.compile lock files in their caches" % (
                folder,
                error.strerror,
            )
            if error.errno not in _NO_LOCKS or not _pipes_lock():
                raise StageFailed("filesystem-without-locks", seen, _ELSEWHERE_LOCKED) from error
            here.remark = "%s; %s" % (seen, _ELSEWHERE_LOCKED)
            return
        with contextlib.suppress(OSError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen = "a file below %s is locked (flock), and was given to another at once: what writes into one cache spoils it"
            raise StageFailed("filesystem-without-locks", seen % folder, _ELSEWHERE_LOCKED)


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def _pipes_lock() -> bool:
    """Return whether the kernel, or a sandbox in its place, gives a lock on what lies on no file system."""
    ends = os.pipe()
    try:
        fcntl.flock(ends[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        for end in ends:
            os.close(end)
    return True
