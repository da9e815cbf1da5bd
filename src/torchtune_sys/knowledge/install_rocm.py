"""The ROCm wheels of torch, and the AMD GPUs that they support."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from torchtune_sys.knowledge import torch as releases
from torchtune_sys.knowledge.install_torch import INDEX
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.version import Version

MACHINE = "x86_64"


class RocmBuild(msgspec.Struct, frozen=True, kw_only=True):
    torch: str
    rocm: str
    """``7.2``"""
    gfx: tuple[str, ...]
    """GPU code that it holds."""
    abis: tuple[str, ...]
    glibc: Version
    torchvision: str
    """A specifier."""
    source: str

    @property
    def name(self) -> str:
        """Return the name of the build, ``rocm7.2``."""
        return f"rocm{self.rocm}"

    @property
    def index(self) -> str:
        return f"{INDEX}{self.name}"


@functools.cache
def builds() -> tuple[RocmBuild, ...]:
    """Return all builds, the newest release first.

    >>> [(item.torch, item.name) for item in builds()][0]
    ('2.13.0', 'rocm7.2')
    """
    return tuple(_build(row) for row in rows("torch_rocm"))


def _build(row: dict[str, str]) -> RocmBuild:
    release = releases.release(row["torch"])
    assert release is not None, row["torch"]
    vision = release.torchvision
    return RocmBuild(
        torch=row["torch"],
        rocm=row["rocm"],
        gfx=tuple(row["gfx"].split()),
        # Free-threaded interpreters: no source tells whether there are such wheels.
        abis=tuple(abi for abi in release.abis if not abi.endswith("t")),
        glibc=(2, 28),
        torchvision=vision if vision.startswith(">=") else f"=={vision}",
        source=row["source"],
    )


def gpu(device: str) -> tuple[str, str]:
    """Name and gfx by PCI device id (``0x74a1`` or ``74a1``); empty strings where no table tells.

    >>> gpu("0x74a1"), gpu("ffff")
    (('AMD Instinct MI300X', 'gfx942'), ('', ''))
    """
    number = device.removeprefix("0x").lower()
    return next(((row["name"], row["gfx"]) for row in rows("amd_gpus") if row["pci_device_id"] == number), ("", ""))


def gpus() -> dict[str, str]:
    """Name → PCI device id."""
    return {row["name"]: row["pci_device_id"] for row in rows("amd_gpus")}


NO_GPU = "gfx000"
"""What ROCm makes of an override that is set and empty (ROCR-Runtime issue 354)."""


def override(env: Mapping[str, str]) -> str:
    """Return the GPU whose code HSA_OVERRIDE_GFX_VERSION has ROCm use (10.3.0: gfx1030; ROCR-Runtime core/runtime/amd_topology.cpp); empty without one."""
    if env.get("HSA_OVERRIDE_GFX_VERSION") == "":
        return NO_GPU
    named = _GFX_VERSION.fullmatch(env.get("HSA_OVERRIDE_GFX_VERSION", ""))
    return f"gfx{named[1]}{named[2]}{int(named[3]):x}" if named else ""


_GFX_VERSION = pattern(r"([0-9]{1,2})\.([0-9])\.([0-9]{1,2})")


def generation(gfx: str) -> str:
    """Return the generation of the instruction set, whose code no other runs: the number without its last two digits (LLVM, AMDGPUUsage).

    >>> generation("gfx942"), generation("gfx90a"), generation("gfx1030")
    ('9', '9', '10')
    """
    return gfx.removeprefix("gfx")[:-2]
