"""Compatibility of drivers with CUDA versions, and of driver branches with GPUs.

Two different floors exist for a CUDA version, and only one of them decides whether a wheel runs: within a major version
(from 11 on) any driver from the *series floor* runs every minor version; the driver that a toolkit was released with is newer.
"""

from __future__ import annotations

import functools

import msgspec

from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.version import Version, version


class FloorRow(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest Linux driver on which programs built for a CUDA version run."""

    series: str
    """``12.x`` (minor-version compatibility) or a single toolkit, ``10.2``."""
    driver: str
    """``525.60.13``"""
    source: str
    confidence: str
    note: str = ""

    @property
    def version(self) -> Version:
        return version(self.driver)


LAST_OF_DISPLAYS = 470
"""The last branch for Kepler: beside newer GPUs such cards drive displays. Of them the K80 alone had wheels of torch 2 (for CUDA 11.8, up to 2.7)."""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of NVIDIA GPUs and the driver branches that serve it."""

    name: str
    first_cc: Version
    last_cc: Version
    first_branch: int | None
    """None where no driver is known yet."""
    last_branch: int | None
    """None while the newest driver serves it."""
    open_module: str
    """``no``: only the proprietary kernel module serves it; ``only``: only the open one; ``yes``: both."""
    source: str


def floor_for(cuda: Version) -> FloorRow | None:
    """Return the driver floor for programs built for ``cuda`` (major and minor); None for versions that no table knows.

    Source: docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html; before CUDA 11 there is no such
    compatibility, so the toolkit's own driver is the floor.

    >>> floor_for((12, 8)).driver, floor_for((13, 2)).driver, floor_for((10, 2)).driver, floor_for((99, 0))
    ('525.60.13', '580.65.06', '440.33', None)
    """
    for row in rows("cuda_minor_compat"):
        if row["series"] == f"{cuda[0] if cuda else 0}.x" and version(row["min_driver_linux"]):
            return FloorRow(
                series=row["series"],
                driver=row["min_driver_linux"],
                source=row["source"],
                confidence=row["confidence"],
                note=row["note"],
            )
    return toolkit_floor(cuda) if cuda and cuda[0] < 11 else None


def toolkit_floor(cuda: Version) -> FloorRow | None:
    """Return the oldest driver of the toolkit release ``cuda`` itself (needed for PTX that it compiles, and before CUDA 11 for all).

    >>> toolkit_floor((12, 8)).driver, toolkit_floor((13, 4))
    ('570.26', None)
    """
    found = [row for row in rows("cuda_toolkit_driver") if version(row["series"])[:2] == cuda[:2]]
    found = [row for row in found if version(row["toolkit_driver_linux_min"])]
    if not found:
        return None
    row = min(found, key=lambda row: version(row["toolkit_driver_linux_min"]))
    return FloorRow(
        series=row["series"],
        driver=row["toolkit_driver_linux_min"],
        source=row["source"],
        confidence=row["confidence"],
        note=row["note"],
    )


def max_cuda(driver: Version) -> Version | None:
    """Return the highest CUDA that a Linux driver supports (nvidia-smi's "CUDA Version"); None for branches that no table knows.

    >>> max_cuda((535, 104, 5)), max_cuda((465, 19, 1)), max_cuda((430, 50)), max_cuda((999, 1))
    ((12, 2), (11, 3), (10, 1), None)
    """
    branches = {int(row["driver_branch"]): version(row["max_cuda_reported"]) for row in rows("driver_branch_cuda")}
    if not driver or driver[0] > max(branches):
        return None
    if driver[0] in branches:
        return branches[driver[0]] or None
    fitting = [
        version(row["series"])
        for row in rows("cuda_toolkit_driver")
        if version(row["toolkit_driver_linux_min"]) and version(row["toolkit_driver_linux_min"]) <= driver
    ]
    return max(fitting, default=None)


@functools.cache
def architectures() -> tuple[Architecture, ...]:
    return tuple(
        Architecture(
            name=row["arch"],
            first_cc=version(row["cc_first"]),
            last_cc=version(row["cc_last"]),
            first_branch=int(row["first_driver_branch"]) if row["first_driver_branch"] else None,
            last_branch=int(row["last_driver_branch"]) if row["last_driver_branch"] else None,
            open_module=row["open_module"],
            source=row["source"],
        )
        for row in rows("gpu_architectures")
    )


def architecture(name: str) -> Architecture | None:
    """Return the generation called ``name`` (``Turing``)."""
    return next((arch for arch in architectures() if arch.name == name), None)


def architecture_of(cc: Version) -> Architecture | None:
    """Return the generation with compute capability ``cc``; the most specific one where ranges overlap (10.7 is Rubin).

    >>> architecture_of((8, 6)).name, architecture_of((10, 3)).name, architecture_of((99, 0))
    ('Ampere', 'Blackwell', None)
    """
    found = [arch for arch in architectures() if arch.first_cc <= cc[:2] <= arch.last_cc]
    return min(found, key=lambda arch: (arch.last_cc[0] - arch.first_cc[0], arch.last_cc[1] - arch.first_cc[1]), default=None)
