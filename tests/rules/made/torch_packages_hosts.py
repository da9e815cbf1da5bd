"""Hosts and words that the boundary tests of torch_packages share."""

from __future__ import annotations

from typing import Any

from altered import NOTHING, altered

from torchtune_sys.model.facts.python import Distribution, Torch
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

UNTOLD = Missing(Why.NOT_RECORDED, "test")
SITE = "/data/train/.venv/lib/python3.12/site-packages"


def torch(version: str, cuda: Any = NOTHING, **facts: Any) -> Torch:
    told = {"location": f"{SITE}/torch", "hip": NOTHING, "debug": False, "arch_list": UNTOLD, "nccl": UNTOLD, "cudnn": UNTOLD}
    return Torch(**{**told, "version": version, "cuda": cuda, **facts})


def item(name: str, version: str = "1.0", location: str = SITE, **facts: Any) -> Distribution:
    return Distribution(name=name, version=version, location=location, **facts)


def host(seen: Snapshot, build: Any, *items: Distribution) -> Snapshot:
    return altered(seen, python__torch=build, python__distributions=items)


BUILD = torch("2.11.0+cu130", "13.0")
