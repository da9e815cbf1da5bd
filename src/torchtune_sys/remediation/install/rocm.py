"""Choose the wheel of torch for AMD GPUs. The kernel's amdgpu already drives them, else they would not be seen as training GPUs."""

from __future__ import annotations

from torchtune_sys.knowledge import install as pages
from torchtune_sys.knowledge import install_rocm as known
from torchtune_sys.model.install import InstallOptions, InstallRefused, Wheel
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value
from torchtune_sys.model.version import show, version
from torchtune_sys.remediation.install.builds import BuildTarget

DRIVERS = "https://rocm.docs.amd.com/en/latest/compatibility/compatibility-matrix.html"


def choose(s: Snapshot, place: BuildTarget, options: InstallOptions) -> Wheel | InstallRefused:
    """Return the newest build for every AMD GPU of the host, of the wanted release."""
    found = _gpus(s)
    if options.tool in ("conda", "pixi"):
        return _refused("conda-forge has no ROCm build of torch", ("build",), "--tool pip or uv")
    if "" in found.values() or not found:
        strange = next((name for name, gfx in found.items() if not gfx), "GPUs of a kind that could not be seen")
        return _refused(f"the architecture of {strange} is in no table", ("gpu",), f"choose ROCm at {pages.ROCM_GUIDE}")
    if place.machine != known.MACHINE:
        return _refused(
            f"there are no ROCm wheels for {place.machine or 'an unseen machine'}", ("machine",), "a container of AMD's"
        )
    release, _, local = options.torch.partition("+")
    numbers = version(release)
    released = [item for item in known.builds() if version(item.torch)[: len(numbers)] == numbers and local in ("", item.name)]
    fits = next((item for item in released if not _obstacles(item, place, found)), None)
    if fits is not None:
        return _wheel(fits, place)
    others = [f"{item.torch}+{item.name}" for item in known.builds() if not _obstacles(item, place, found)]
    had = f"torch {others[0]}" if others else ""
    if not released:
        reason = f"no ROCm build of torch {options.torch} is on record with the GPUs that it holds code for"
        way = f"ask for one of {' '.join(others)}" if others else f"choose ROCm at {pages.ROCM_GUIDE}"
        return _refused(reason, ("build",), way, had)
    reasons = _obstacles(released[0], place, found)
    called = f"torch {released[0].torch}+{released[0].name}"
    way = (
        "--cpu, another GPU, or torch built from source for this one"
        if "gpu" in reasons
        else f"choose ROCm at {pages.ROCM_GUIDE}"
    )
    return _refused(f"{called} {' and '.join(reasons.values())}", tuple(reasons), way, had)


def _gpus(s: Snapshot) -> dict[str, str]:
    """Name → gfx, ``""`` where it is not known."""
    if isinstance(s.driver, Missing) or isinstance(s.pci, Missing):
        return {}
    ids = {item.address: value(item.device, "") for item in value(s.pci.devices, ())}
    devices = [ids.get(address, "") for address in value(s.driver.amd_devices, ())]
    named = ((known.gpu(device), device) for device in devices)
    return {name or f"1002:{device.removeprefix('0x')}": gfx for (name, gfx), device in named}


def _obstacles(build: known.RocmBuild, place: BuildTarget, found: dict[str, str]) -> dict[str, str]:
    reasons = {}
    if place.abi not in build.abis:
        reasons["python"] = f"has no wheel for {place.abi}, only for {' '.join(build.abis)}"
    if place.glibc and place.glibc < build.glibc:
        reasons["glibc"] = f"needs glibc {show(build.glibc)}, this host has {show(place.glibc)}"
    lacking = sorted({gfx for gfx in found.values() if gfx not in build.gfx})
    if lacking:
        reasons["gpu"] = f"holds no code for {' '.join(lacking)}"
    return reasons


def _wheel(build: known.RocmBuild, place: BuildTarget) -> Wheel:
    return Wheel(
        torch=build.torch,
        build=build.name,
        index=build.index,
        abi=place.abi,
        machine=known.MACHINE,
        torchvision=build.torchvision,
        driver="",
        glibc=show(build.glibc),
        source=build.source,
    )


def _refused(reason: str, blocked: tuple[str, ...], way: str, newest: str = "") -> InstallRefused:
    return InstallRefused(
        key="torch", what="torch for ROCm", reason=reason, blocked_by=blocked, newest=newest, way=way, source=pages.ROCM_GUIDE
    )
