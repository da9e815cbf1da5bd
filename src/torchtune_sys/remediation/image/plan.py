"""Plan a container image for a host: base image, torch, other contents, and start flags."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.knowledge import images
from torchtune_sys.knowledge import install as known
from torchtune_sys.model.image import Base, Content, Image, ImageOptions
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


def plan(s: Snapshot, options: ImageOptions) -> Image:
    """Plan an image. Never raises: what cannot be had, or could not be seen, is a refusal or a note."""
    found = Image(host=host_name(s), origin=s.origin, system=system_name(s), offline=options.offline)
    bases = _bases(s, options)
    if isinstance(bases, InstallRefused):
        return msgspec.structs.replace(found, refused=(bases,))
    gpu = is_nvidia(s) and not options.cpu
    driver = _driver(s) if gpu else None
    chosen = driver if isinstance(driver, InstallRefused) else _chosen(s, options, bases, driver)
    if isinstance(chosen, InstallRefused):
        return msgspec.structs.replace(found, base=bases[0], refused=(chosen,))
    base, wheel = chosen
    return msgspec.structs.replace(
        found,
        base=base,
        why_base=_why_base(base, wheel, options),
        wheel=wheel,
        specifiers=_specifiers(wheel, "torchvision" in options.extras),
        partners=(environment.numpy(wheel),),
        content=tuple(_content(s, base, options)),
        required_driver=version(wheel.driver)[0] if wheel.driver else 0,
        flags=tuple(flags(s, wheel.build, "rdma" in options.extras, _has_numactl(s, options))),
        notes=tuple(_notes(s, base, wheel, gpu)),
    )


def _bases(s: Snapshot, options: ImageOptions) -> tuple[Base, ...] | InstallRefused:
    """Those that may be taken, in order of preference."""
    found = _named(options) if options.base else images.defaults(version(options.torch) or _NEWEST)
    if isinstance(found, InstallRefused):
        return found
    machine = machine_of(s)
    if options.python:
        fits = tuple(base for base in found if base.python == options.python)
        return fits or _no_python(found, options)
    here = interpreter(s, InstallOptions())
    own = here.version if isinstance(here, Interpreter) else ""
    fits = tuple(base for base in found if not machine or machine in base.machines) or found
    return tuple(sorted(fits, key=lambda base: base.python != own))


def _no_python(found: tuple[Base, ...], options: ImageOptions) -> InstallRefused:
    there = " ".join(base.python for base in found)
    return InstallRefused(
        key="base",
        what=f"an image with Python {options.python}",
        reason=f"{options.base} has {there}" if options.base else f"the official images that are still updated have {there}",
        blocked_by=("python",),
        newest=f"Python {max((base.python for base in found), key=version)}",
        way="name one of these, or another image: --base IMAGE",
        source=found[0].source,
    )


def _named(options: ImageOptions) -> tuple[Base, ...] | InstallRefused:
    asked = options.base_system.partition(":") if options.base_system else None
    system = (asked[0], asked[2]) if asked else images.system_of(options.base)
    if system is None:
        return _no_base(options, "its name does not tell which distribution it holds", "tell it: --base-system ubuntu:24.04")
    found = images.named(options.base, *system)
    if not found:
        reason = f"which packages {' '.join(system)} has, and which Python, is not on record here"
        return _no_base(options, reason, "take an image of Debian, Ubuntu, an Enterprise Linux, Fedora or Amazon Linux 2023")
    return found


def _no_base(options: ImageOptions, reason: str, way: str) -> InstallRefused:
    return InstallRefused(key="base", what=options.base, reason=reason, blocked_by=("base",), way=way, source=images.OFFICIAL)


def _driver(s: Snapshot) -> Version | InstallRefused:
    """Return the driver that containers will get: the host's, or the one that is to be installed there."""
    current = current_driver(s, cards(s))
    if current is not None:
        return version(current.installed)
    chosen = branch.choose(cards(s))
    return chosen if isinstance(chosen, InstallRefused) else branch.first_version(chosen.branch)


def _chosen(
    s: Snapshot, options: ImageOptions, bases: tuple[Base, ...], driver: Version | None
) -> tuple[Base, Wheel] | InstallRefused:
    """Return the newest torch that one of the bases can hold; of several the first. ``driver`` is None for the CPU."""
    special = on_chip(cards(s)) if driver is not None else None
    if special is not None:
        return special
    amd = driver is None and not options.cpu and is_amd(s)
    tried = [(base, _torch(s, base, options.torch, driver, amd)) for base in bases]
    fits = [(base, wheel) for base, wheel in tried if isinstance(wheel, Wheel)]
    if not fits:
        refused = tried[0][1]
        assert isinstance(refused, InstallRefused)
        return refused
    base, wheel = max(fits, key=lambda fit: version(fit[1].torch))
    if options.base:
        return base, wheel
    release = _BEFORE_GLIBC_2_41 if amd else version(wheel.torch)
    contemporary = next(item for item in images.defaults(release) if item.python == base.python)
    again = _torch(s, contemporary, wheel.local, driver, amd)
    return (contemporary, again) if isinstance(again, Wheel) else (base, wheel)


def _torch(s: Snapshot, base: Base, wanted: str, driver: Version | None, amd: bool) -> Wheel | InstallRefused:
    place = BuildTarget(machine=machine_of(s), abi=base.abi, glibc=base.glibc)
    if amd:
        return rocm.choose(s, place, InstallOptions(torch=wanted))
    if driver is None:
        return builds.choose(place, wanted, cpu=True)
    capabilities = capabilities_of(cards(s))
    return builds.choose(msgspec.structs.replace(place, capabilities=capabilities, driver=driver), wanted)


def _specifiers(wheel: Wheel, vision: bool) -> tuple[str, ...]:
    kept = ("torch==", "torchvision") if vision else ("torch==",)
    return tuple(name for name in environment.specifiers(wheel) if name.startswith(kept))


def _why_base(base: Base, wheel: Wheel, options: ImageOptions) -> str:
    holds = f"Python {base.python} and glibc {show(base.glibc)}, of which torch needs {wheel.glibc}"
    if options.base:
        return f"The base that was asked for, with {holds}."
    plain = f"{_NO_CUDA} " if wheel.driver else _NO_ROCM if wheel.build.startswith("rocm") else ""
    return f"{plain}{base.system} with {holds}; Python's headers are in it."


def _has_numactl(s: Snapshot, options: ImageOptions) -> bool:
    nodes = () if isinstance(s.numa, Missing) else value(s.numa.nodes, ())
    return len(nodes) > 1 or "numactl" in options.extras


def _content(s: Snapshot, base: Base, options: ImageOptions) -> Iterator[Content]:
    if base.packages:
        yield Content(names=base.packages, why="Python, and what makes environments with it", source=base.source)
    if options.compiler:
        names, source = _packages(base, "compiler")
        why = "torch.compile builds with them and with Python's headers; 0.3 GB, --no-compiler leaves them out"
        yield Content(names=(*names, *base.headers), why=why, source=f"{known.TRITON}; {source}", programs=("gcc", "g++"))
    if _has_numactl(s, options):
        names, source = _packages(base, "numactl")
        yield Content(names=names, why="places processes and their memory", source=source, programs=("numactl",))
    if has_rdma(s) or "rdma" in options.extras:
        names, source = images.packages(base.manager, "rdma")
        why = "NCCL loads libibverbs to reach RDMA cards, else it takes TCP"
        yield Content(names=names, why=why, source=source, libraries=("ibverbs",))
    if "jemalloc" in options.extras:
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
