"""Who this rank is, and whether what it imported is of one piece."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import socket
import sys
from typing import Any, Dict, Sequence

import torch
import torch.distributed

from torchtune_sys.smoke.worker.channel import starter
from torchtune_sys.smoke.worker.context import RankContext
from torchtune_sys.smoke.worker.starting import loopback_address


def rank_from_scheduler() -> None:
    """Slurm and the MPI launchers give ranks their places under names of their own; torch reads only torchrun's."""
    told = starter()
    if told is None or told.rank == "RANK":
        return
    world = _first_set(told.world, "1")
    os.environ["RANK"] = os.environ[told.rank]
    os.environ["WORLD_SIZE"] = world
    os.environ["LOCAL_RANK"] = _first_set(told.local, "0")
    os.environ["LOCAL_WORLD_SIZE"] = re.split(r"[(,]", _first_set(told.local_world, "1"))[0]
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = _meeting_host(told.rank, os.environ["LOCAL_WORLD_SIZE"] == world)
    os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ.get("SLURM_JOB_ID", "0") or "0") % 10000))


def _meeting_host(told: str, all_here: bool) -> str:
    if all_here:
        return loopback_address()[1]
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        words = "the ranks of several hosts need a place to meet: export MASTER_ADDR=HOST, the host of rank 0 (%s says no host)"
        sys.exit("the smoke test cannot start: " + words % told)
    return first_host(nodes)


def _first_set(names: Sequence[str], otherwise: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), otherwise)


def first_host(nodes: str) -> str:
    """Return the first of a host list of Slurm's, whose brackets hold numbers and ranges of them.

    >>> first_host("gpu[003-007,12]-ib,login1"), first_host("r[1-2]n[04,08-16]"), first_host("alpha,beta"), first_host("n[7]")
    ('gpu003-ib', 'r1n04', 'alpha', 'n7')
    """
    end = re.match(r"(?:\[[^\]]*\]|[^,\[])*", nodes)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", end.group(0) if end else nodes)


def versions_agree(world: int, world_wish: int) -> Dict[str, str]:
    """Return the verdict of the stage "import": Python files, compiled library and package record are of one torch. ``world_wish``: how many
    ranks the job is to have; 0 if nobody said."""
    ended = {"verdict": "pass", "cause": "", "seen": "", "remedy": "", "trace": ""}
    imported = torch.__version__
    try:
        recorded = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        recorded = imported  # built in place, or found by PYTHONPATH
    if imported.partition("+")[0] != recorded.partition("+")[0]:
        ended.update(
            verdict="fail",
            cause="torch-versions-mixed",
            seen="torch %s was imported from %s, but %s is installed" % (imported, os.path.dirname(torch.__file__), recorded),
            remedy="remove the other torch (PYTHONPATH, ~/.local, a directory named torch), or reinstall",
        )
    unusable = _numpy_is_unusable()
    if unusable:
        ended.update(
            verdict="fail",
            cause="numpy-broken",
            seen=unusable,
            remedy="pip install --force-reinstall numpy; numpy<2 for torch before 2.3",
        )
    if 0 < world_wish != world:
        ended.update(
            verdict="fail",
            cause="wrong-world-size",
            seen="this rank was told of %d ranks, the job has %d" % (world, world_wish),
            remedy="find out what else sets WORLD_SIZE besides the launcher",
        )
    return ended


def _numpy_is_unusable() -> str:
    """Return what is wrong with NumPy. It is not needed; but where it is there data sets take it, and torch says no more than a warning."""
    try:
        numpy: Any = importlib.import_module("numpy")
        if torch.from_numpy(numpy.arange(3)).tolist() == torch.arange(3, device="cpu").numpy().tolist():
            return ""
        seen = "it and torch do not agree on what an array holds"
    except ModuleNotFoundError as error:
        if error.name == "numpy":
            return ""
        seen = str(error)
    except Exception as error:
        seen = "%s: %s" % (type(error).__name__, error)
    lines = [line.strip() for line in seen.splitlines() if line.strip()]
    return "NumPy is there, but cannot be used: %s" % " ".join(lines)[:300]


def about(here: RankContext) -> Dict[str, Any]:
    """Return what this rank runs with."""
    told: Dict[str, Any] = {"torch": torch.__version__, "backend": here.backend, "kind": here.kind, "device": "", "nccl": ""}
    if here.gpus:
        found = torch.cuda.get_device_properties(here.device)
        # Since torch 2.5; the place on the bus since 2.8.
        told.update(device="GPU %d" % here.device.index, gpu=found.name, uuid=str(getattr(found, "uuid", "")))
        told.update(gpus=here.gpus, host=socket.gethostname())
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            told["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return told
