"""What a model's state holds beside the numbers of its weights, and what a directory tells of files."""

from __future__ import annotations

import os
from typing import Any, List

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import StageFailed


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
