"""Recordings that other projects made: no part of this repository, read in place where somebody has them.

TORCHTUNE_SYS_HOSTS_DIR names their folder (else: ``shared/hosts`` beside the checkout). What they show is held by recordings
of this project's own too; they show it of machines that nobody here has made up.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("TORCHTUNE_SYS_HOSTS_DIR") or Path(__file__).resolve().parents[2] / "shared" / "hosts")
_GPUD = "github.com/leptonai/gpud"
ORIGINS = {
    "ghw": "/proc and /sys of machines that ghw recorded (github.com/jaypipes/ghw, testdata/snapshots)",
    "hwloc": "/proc and /sys of machines that hwloc recorded, and what hwloc expects of them (github.com/open-mpi/hwloc, tests/hwloc/linux)",
    "infiniband": f"/sys/class/infiniband of an H100 node ({_GPUD}, testdata of its InfiniBand component)",
    "logs": f"kernel and fabric manager logs ({_GPUD}, testdata of its Xid and fabric manager components)",
    "lsblk": f"lsblk, findmnt and mountinfo of Kubernetes nodes ({_GPUD}, testdata of its disk component)",
    "nccl-topo": "NCCL topologies of cloud machines (github.com/Azure/azhpc-images, github.com/aws/aws-ofi-nccl)",
    "nvidia-smi": "nvidia-smi's output over its versions (github.com/influxdata/telegraf, github.com/utkuozdemir/nvidia_gpu_exporter)",
    "pci": f"lspci -vvv of an 8-GPU node ({_GPUD}, testdata of its PCI component)",
}
"""Folder → what is in it and where the public original lies."""


def recorded_elsewhere(name: str) -> Path:
    """Return the path of a file or folder in the folder of recordings; the test is skipped where it is not there."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(_reason(name))
    return path


def all_recorded_elsewhere(*patterns: str) -> list[Path]:
    """Return the files that match; none where the recordings are not here."""
    return [path for pattern in patterns for path in sorted(FOLDER.glob(pattern))]


def each_recorded_elsewhere(*patterns: str) -> list[Any]:
    """Return the files that match as parameters of a test; where there are none, one by which it is skipped with a reason."""
    lacking = pytest.param(Path(), marks=pytest.mark.skip(reason=_reason(patterns[0])))
    return all_recorded_elsewhere(*patterns) or [lacking]


def _reason(name: str) -> str:
    folder = name.partition("/")[0]
    return f"{ORIGINS[folder]} are no part of this repository: TORCHTUNE_SYS_HOSTS_DIR names a folder with {folder}/ in it"
