"""Hosts and words that the boundary tests of torch_tools share."""

from __future__ import annotations

from typing import Any

import msgspec
from altered import altered

from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Distribution, LoaderChoice
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why

UNTOLD = Missing(Why.NOT_RECORDED, "test")
SITE = "/data/train/.venv/lib/python3.12/site-packages"


def with_torch(seen: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(seen.python, Missing)
    return altered(seen, python__torch=msgspec.structs.replace(seen.python.torch, **facts))


def with_items(seen: Snapshot, **versions: str) -> Snapshot:
    """The same host with these packages alone (``nvidia_nccl_cu13="2.28.9"``)."""
    items = (Distribution(name=name.replace("_", "-"), version=number, location=SITE) for name, number in versions.items())
    return altered(seen, python__distributions=tuple(items))


def with_gpus(seen: Snapshot, *capabilities: Any, names: tuple[Any, ...] = ()) -> Snapshot:
    told = names or tuple("a GPU" for _ in capabilities)
    found = zip(capabilities, told, strict=True)
    return altered(seen, gpu__devices=tuple(Gpu(index=i, name=n, compute_capability=cc) for i, (cc, n) in enumerate(found)))


def taken(name: str, path: Any, version: str = "") -> LoaderChoice:
    return LoaderChoice(name=name, path=path, found_by="LD_LIBRARY_PATH", version=version)
