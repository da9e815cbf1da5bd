"""Who this rank is, and whether what it imported is of one piece."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from typing import Any, Dict

import torch
import torch.distributed

from torchtune_sys.smoke.worker.context import RankContext


def rank_from_scheduler() -> None:
    """Slurm and Open MPI give ranks their places under names of their own; torch reads only torchrun's."""
    if "RANK" in os.environ:
        return
    for rank, world, local, local_world in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ):
        if rank in os.environ:
            os.environ["RANK"] = os.environ[rank]
            os.environ["WORLD_SIZE"] = os.environ.get(world, "1")
            os.environ["LOCAL_RANK"] = os.environ.get(local, "0")
            os.environ["LOCAL_WORLD_SIZE"] = re.split(r"[(,]", os.environ.get(local_world, "1"))[0]
            break
    os.environ.setdefault("MASTER_ADDR", _first_node())
    os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ.get("SLURM_JOB_ID", "0") or "0") % 10000))


def _first_node() -> str:
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        return "127.0.0.1"
    if "[" not in nodes:
        return nodes.split(",")[0]
    try:
        found = subprocess.run(["scontrol", "show", "hostnames", nodes], stdout=subprocess.PIPE, timeout=10, check=True)
        return found.stdout.decode().split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return re.sub(r"\[(\d+).*", r"\1", nodes)


def versions_agree(here: RankContext) -> Dict[str, str]:
    """The verdict of the stage "import": Python files, compiled library and package record are of one torch."""
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
            remedy="remove the other torch (PYTHONPATH, ~/.local, a folder named torch), or reinstall",
        )
    if 0 < here.world_wish != here.world:
        ended.update(
            verdict="fail",
            cause="wrong-world-size",
            seen="this rank was told of %d ranks, the job has %d" % (here.world, here.world_wish),
            remedy="look who sets WORLD_SIZE beside the launcher",
        )
    return ended


def about(here: RankContext) -> Dict[str, Any]:
    """What this rank runs with."""
    told: Dict[str, Any] = {"torch": torch.__version__, "backend": here.backend, "kind": here.kind, "device": "", "nccl": ""}
    if here.gpus:
        found = torch.cuda.get_device_properties(here.device)
        # Since torch 2.5; the place on the bus since 2.8.
        told.update(device="GPU %d" % here.device.index, gpu=found.name, uuid=str(getattr(found, "uuid", "")))
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            told["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return told
