"""Draws the list's operations: ``PYTHON-with-torch -m smoke.faults.lists.list_18.places`` (torch 2.13.0)."""

from __future__ import annotations

import importlib
import inspect
import random

PLACES = {
    "nn": "torch.nn torch.nn.utils torch.nn.utils.rnn torch.nn.utils.parametrize torch.nn.attention",
    "functional": "torch.nn.functional",
    "optim": "torch.optim torch.optim.lr_scheduler torch.optim.swa_utils",
    "distributed": "torch.distributed torch.distributed.fsdp torch.distributed.tensor torch.distributed.tensor.parallel torch.distributed.pipelining "
    "torch.distributed.checkpoint.state_dict torch.distributed.checkpoint torch.distributed.device_mesh torch.distributed.optim torch.distributed.algorithms "
    "torch.distributed.nn.functional",
}


def drawn() -> dict[str, list[str]]:
    draw, found = random.Random(1918), {}
    for kind, places in PLACES.items():
        names: set[str] = set()
        for place in places.split():
            home = importlib.import_module(place)
            for name in getattr(home, "__all__", None) or dir(home):
                one = getattr(home, name, None)
                raised = isinstance(one, type) and issubclass(one, BaseException)
                if callable(one) and not raised and not name.startswith("_") and not inspect.ismodule(one):
                    names.add(f"{place}.{name}")
        found[kind] = draw.sample(sorted(names), 16 if kind == "distributed" else 12)
    return found


if __name__ == "__main__":
    for kind, names in drawn().items():
        print(kind, *names)
