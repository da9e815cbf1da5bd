"""Plan a container image for a host: base image, torch, other contents, and start flags."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.knowledge import images
from torchtune_sys.knowledge import install as known
from torchtune_sys.model.image import Base, Content, Image, ImageWishes
from torchtune_sys.model.install import InstallOptions, InstallRefused, Wheel
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.values import known as value
from torchtune_sys.model.version import Version, show, version
from torchtune_sys.remediation.image.flags import flags, has_rdma
from torchtune_sys.remediation.install import branch, builds, environment, rocm
from torchtune_sys.remediation.install.branch import current_driver
from torchtune_sys.remediation.install.builds import BuildTarget
from torchtune_sys.remediation.install.gpus import capabilities_of, cards, on_chip
from torchtune_sys.remediation.install.host import host_name, is_amd, is_nvidia, machine_of, running_driver, system_name
from torchtune_sys.remediation.install.interpreter import Interpreter, interpreter

_NO_CUDA = (
    "torch's wheels bring CUDA, and the driver's libraries come from the host. So no CUDA image: it would hold CUDA twice, and "
    "NVIDIA deletes their tags half a year after their end (support-policy.md of gitlab.com/nvidia/container-images/cuda)."
)
_NO_ROCM = (
    "torch's wheels bring ROCm, and amdgpu is the host's. RCCL has asked for an executable stack, which glibc refuses from 2.41 on "
    "(lamikr/rocm_sdk_builder issue 241), so an older one is taken. "
)
_NEWEST: Version = (9999,)
_BEFORE_GLIBC_2_41: Version = (2, 5)
"""The last release line of torch that came out before it."""


def plan(s: Snapshot, wishes: ImageWishes) -> Image:
    """Never raises: what cannot be had, or could not be seen, is a refusal or a note."""
    found = Image(host=host_name(s), origin=s.origin, system=system_name(s), offline=wishes.offline)
    bases = _bases(s, wishes)
    if isinstance(bases, InstallRefused):
        return msgspec.structs.replace(found, refused=(bases,))
    gpu = is_nvidia(s) and not wishes.cpu
    driver = _driver(s) if gpu else None
    chosen = driver if isinstance(driver, InstallRefused) else _chosen(s, wishes, bases, driver)
    if isinstance(chosen, InstallRefused):
        return msgspec.structs.replace(found, base=bases[0], refused=(chosen,))
    base, wheel = chosen
    return msgspec.structs.replace(
        found,
        base=base,
        why_base=_why_base(base, wheel, wishes),
        wheel=wheel,
        specifiers=_specifiers(wheel, "torchvision" in wishes.extras),
        partners=(environment.numpy(wheel),),
        content=tuple(_content(s, base, wishes)),
        required_driver=version(wheel.driver)[0] if wheel.driver else 0,
        flags=tuple(flags(s, wheel.build, "rdma" in wishes.extras, _has_numactl(s, wishes))),
        notes=tuple(_notes(s, base, wheel, gpu)),
    )


def _bases(s: Snapshot, wishes: ImageWishes) -> tuple[Base, ...] | InstallRefused:
    """Those that may be taken, in order of preference."""
    found = _named(wishes) if wishes.base else images.defaults(version(wishes.torch) or _NEWEST)
    if isinstance(found, InstallRefused):
        return found
    machine = machine_of(s)
    if wishes.python:
        fits = tuple(base for base in found if base.python == wishes.python)
        return fits or _no_python(found, wishes)
    here = interpreter(s, InstallOptions())
    own = here.version if isinstance(here, Interpreter) else ""
    fits = tuple(base for base in found if not machine or machine in base.machines) or found
    return tuple(sorted(fits, key=lambda base: base.python != own))


def _no_python(found: tuple[Base, ...], wishes: ImageWishes) -> InstallRefused:
    there = " ".join(base.python for base in found)
    return InstallRefused(
        key="base",
        what=f"an image with Python {wishes.python}",
        reason=f"{wishes.base} has {there}" if wishes.base else f"the official images that are still updated have {there}",
        blocked_by=("python",),
        newest=f"Python {max((base.python for base in found), key=version)}",
        way="name one of these, or another image: --base IMAGE",
        source=found[0].source,
    )


def _named(wishes: ImageWishes) -> tuple[Base, ...] | InstallRefused:
    told = wishes.base_system.partition(":") if wishes.base_system else None
    system = (told[0], told[2]) if told else images.system_of(wishes.base)
    if system is None:
        return _no_base(wishes, "its name does not tell which distribution it holds", "tell it: --base-system ubuntu:24.04")
    found = images.named(wishes.base, *system)
    if not found:
        reason = f"which packages {' '.join(system)} has, and which Python, is not on record here"
        return _no_base(wishes, reason, "take an image of Debian, Ubuntu, an Enterprise Linux, Fedora or Amazon Linux 2023")
    return found


def _no_base(wishes: ImageWishes, reason: str, way: str) -> InstallRefused:
    return InstallRefused(key="base", what=wishes.base, reason=reason, blocked_by=("base",), way=way, source=images.OFFICIAL)


def _driver(s: Snapshot) -> Version | InstallRefused:
    """Return the driver that containers will get: the host's, or the one that is to be installed there."""
    current = current_driver(s, cards(s))
    if current is not None:
        return version(current.installed)
    chosen = branch.choose(cards(s))
    return chosen if isinstance(chosen, InstallRefused) else branch.first_version(chosen.branch)


def _chosen(
    s: Snapshot, wishes: ImageWishes, bases: tuple[Base, ...], driver: Version | None
) -> tuple[Base, Wheel] | InstallRefused:
    """Return the newest torch that one of the bases can hold; of several the first. ``driver`` is None for the CPU."""
    special = on_chip(cards(s)) if driver is not None else None
    if special is not None:
        return special
    amd = driver is None and not wishes.cpu and is_amd(s)
    tried = [(base, _torch(s, base, wishes.torch, driver, amd)) for base in bases]
    fits = [(base, wheel) for base, wheel in tried if isinstance(wheel, Wheel)]
    if not fits:
        refused = tried[0][1]
        assert isinstance(refused, InstallRefused)
        return refused
    base, wheel = max(fits, key=lambda fit: version(fit[1].torch))
    if wishes.base:
        return base, wheel
    release = _BEFORE_GLIBC_2_41 if amd else version(wheel.torch)
    contemporary = next(item for item in images.defaults(release) if item.python == base.python)
    again = _torch(s, contemporary, wheel.local, driver, amd)
    return (contemporary, again) if isinstance(again, Wheel) else (base, wheel)


def _torch(s: Snapshot, base: Base, wish: str, driver: Version | None, amd: bool) -> Wheel | InstallRefused:
    place = BuildTarget(machine=machine_of(s), abi=base.abi, glibc=base.glibc)
    if amd:
        return rocm.choose(s, place, InstallOptions(torch=wish))
    if driver is None:
        return builds.choose(place, wish, cpu=True)
    capabilities = capabilities_of(cards(s))
    return builds.choose(msgspec.structs.replace(place, capabilities=capabilities, driver=driver), wish)


def _specifiers(wheel: Wheel, vision: bool) -> tuple[str, ...]:
    kept = ("torch==", "torchvision") if vision else ("torch==",)
    return tuple(name for name in environment.specifiers(wheel) if name.startswith(kept))


def _why_base(base: Base, wheel: Wheel, wishes: ImageWishes) -> str:
    holds = f"Python {base.python} and glibc {show(base.glibc)}, of which torch needs {wheel.glibc}"
    if wishes.base:
        return f"The base that was asked for, with {holds}."
    plain = f"{_NO_CUDA} " if wheel.driver else _NO_ROCM if wheel.build.startswith("rocm") else ""
    return f"{plain}{base.system} with {holds}; Python's headers are in it."


def _has_numactl(s: Snapshot, wishes: ImageWishes) -> bool:
    nodes = () if isinstance(s.numa, Missing) else value(s.numa.nodes, ())
    return len(nodes) > 1 or "numactl" in wishes.extras


def _content(s: Snapshot, base: Base, wishes: ImageWishes) -> Iterator[Content]:
    if base.packages:
        yield Content(names=base.packages, why="Python, and what makes environments with it", source=base.source)
    if wishes.compiler:
        names, source = _packages(base, "compiler")
        why = "torch.compile builds with them and with Python's headers; 0.3 GB, --no-compiler leaves them out"
        yield Content(names=(*names, *base.headers), why=why, source=f"{known.TRITON}; {source}", programs=("gcc", "g++"))
    if _has_numactl(s, wishes):
        names, source = _packages(base, "numactl")
        yield Content(names=names, why="places processes and their memory", source=source, programs=("numactl",))
    if has_rdma(s) or "rdma" in wishes.extras:
        names, source = images.packages(base.manager, "rdma")
        why = "NCCL loads libibverbs to reach RDMA cards, else it takes TCP"
        yield Content(names=names, why=why, source=source, libraries=("ibverbs",))
    if "jemalloc" in wishes.extras:
        names, source = _packages(base, "jemalloc")
        why = "for CPU tensors; start with LD_PRELOAD=libjemalloc.so.2 and measure it"
        yield Content(names=names, why=why, source=f"{known.TUNING_GUIDE}; {source}", libraries=("jemalloc",))
    if base.manager == "dnf":
        names, source = images.packages("dnf", "user")
        yield Content(names=names, why="adds the user", source=source, programs=("useradd",))


def _packages(base: Base, purpose: str) -> tuple[tuple[str, ...], str]:
    found = known.packages(base.family, purpose)
    assert found is not None  # apt and dnf have all of these
    return found.names, found.source


def _notes(s: Snapshot, base: Base, wheel: Wheel, gpu: bool) -> Iterator[str]:
    here = running_driver(s)
    if gpu and here and current_driver(s, cards(s)) is None:
        yield f"the host's driver {here} is for other GPUs: the image is for the one that generate install puts there"
    elif gpu and not here:
        yield "no driver runs on this host yet: the image is for the one that generate install puts there"
    elif gpu:
        yield f"the host's driver {here} runs it, so no forward compatibility package is needed (they are for data centre GPUs alone)"
    if wheel.build == "cpu":
        yield "torch for the CPU: nothing of the image uses a GPU"
    elif not gpu:
        yield f"whether amdgpu on this host is new enough for the wheel's ROCm: {rocm.DRIVERS}"
    if gpu and "/cuda:" in f"/{base.image}":
        yield "NVIDIA's CUDA images bring a toolkit's libraries, cuda-compat and NVIDIA_REQUIRE_CUDA of their own, which torch's wheels do not need"
    if base.confidence != "high":
        yield f"what {base.image} holds is taken from its name"
