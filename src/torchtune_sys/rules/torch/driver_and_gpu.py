"""Rules on the installed torch: does it match the driver and the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from torchtune_sys.knowledge import cuda as drivers
from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.actions import Advice, Install, Needs
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, need
from torchtune_sys.model.version import Version, show, version
from torchtune_sys.rules.driver.common import driver_version
from torchtune_sys.rules.gates import nvidia_gpus, nvidia_hardware, torch_imported
from torchtune_sys.rules.torch.common import (
    capability,
    complaint_of,
    cuda_build,
    cuda_of,
    cuda_works,
    displays_beside,
    label,
    live,
    machine,
    model_name,
)
from torchtune_sys.rules.torch.fixes import build_for, lacking_wheel, newer_driver

_TOO_OLD = ("driver on your system is too old", "requirement error: unsatisfied condition: cuda")
"""torch, and the container toolkit for an image that asks for a newer CUDA."""
_NO_CODE = "is not compatible with the current PyTorch installation"
_NO_KERNEL = "no kernel image is available"
_PTX = "compiled with an unsupported toolchain"


@rule(
    id="driver-too-old",
    title="The NVIDIA driver is too old for the CUDA that torch was built with",
    severity=Severity.ERROR,
    cause="driver-too-old",
    fix=(
        Install(text="install a driver for the CUDA that torch was built with, and reboot", needs=Needs.REBOOT),
        Install(
            text="or, if the driver cannot be changed: a build of torch for the driver's CUDA (torchtune-sys generate install picks one)"
        ),
    ),
)
def driver_too_old(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A CUDA build of torch needs at least the minimum driver of its CUDA major version; with an older driver CUDA does not start.

    The minimum is that of the major version (580.65.06 for all of 13, 525.60.13 for all of 12), not the driver that the toolkit
    came with: within a major version, newer builds run on older drivers.

    Why it matters
        torch.cuda.is_available() is False, and training fails or falls back to the CPU. The wheels on PyPI moved to CUDA 13 with
        torch 2.11, so upgrading torch alone can cause this.

    When to leave it
        A cuda-compat package for this CUDA is on the loader's path and the GPU is a data-centre GPU; the rule passes if the
        driver library then reports the newer CUDA.

    References
        https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
        Requirements in the metadata of torch's wheels on PyPI.
    """
    complaint = _said(s, _TOO_OLD)
    if complaint is not None:
        wanted, fix = _instead(s, complaint)
        yield Evidence(subject="driver", seen=complaint.partition(". Please")[0], wanted=wanted, source="torch", fix=fix)
        return
    nvidia_hardware_or_driver(s)
    build, cuda = cuda_build(s)
    floor = drivers.floor_for(cuda)
    subject = f"torch {build.version} (CUDA {show(cuda)})"
    if cuda_works(s):
        yield Evidence(subject=subject, seen="torch says that CUDA is available", verdict=Verdict.PASS, source="torch")
        return
    reported = "" if isinstance(s.gpu, Missing) or isinstance(s.gpu.cuda_driver_version, Missing) else s.gpu.cuda_driver_version
    if _enough(version(reported), cuda):
        yield Evidence(subject=subject, seen=f"the driver supports CUDA {reported}", verdict=Verdict.PASS, source="NVML")
        return
    found = driver_version(s)
    if isinstance(found, Missing) and version(reported):
        wanted, fix = _floor(cuda)
        yield Evidence(subject=subject, seen=f"the driver supports CUDA {reported}", wanted=wanted, source="NVML", fix=fix)
        return
    driver = need(found)
    if floor is None:
        raise NotApplicable(f"no table knows the driver that CUDA {show(cuda)} needs")
    if version(driver) >= floor.version:
        yield Evidence(
            subject=subject, seen=f"driver {driver}", wanted=f">= {floor.driver}", verdict=Verdict.PASS, source=floor.source
        )
        return
    wanted, fix = f"driver >= {floor.driver}", (newer_driver(floor.driver),)
    other = _other_build(s, build, version(driver))
    if other is not None:
        release, variant, last = other
        wanted += f", or torch {release.torch}{last} from the {variant} index"
        fix = (*fix, _under_this_driver(build_for(s, release, variant)))
    yield Evidence(subject=subject, seen=f"driver {driver}", wanted=wanted, source=floor.source, fix=fix)


def nvidia_hardware_or_driver(s: Snapshot) -> None:
    """Require the same as nvidia_hardware; a report that names a driver has a GPU too."""
    seen = () if isinstance(s.gpu, Missing) or s.gpu.vendor != "nvidia" else (s.gpu.driver_version, s.gpu.cuda_driver_version)
    if all(isinstance(look, Missing) for look in seen):
        nvidia_hardware(s)


def _said(s: Snapshot, words: tuple[str, ...]) -> str | None:
    """Return the sentence of torch itself, or the first complaint, with one of these words."""
    seen = live(s)
    error = "" if seen is None else seen.error
    return error if any(word in error for word in words) else complaint_of(s, words)


def _cuda_of_driver(s: Snapshot) -> Version:
    build = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else s.python.torch
    cuda = None if build is None else cuda_of(build)
    return () if cuda is None or isinstance(cuda, Missing) else version(cuda)


def _enough(reported: Version, cuda: Version) -> bool:
    """Tell whether the driver's CUDA (that of a cuda-compat package where one is loaded) covers the build's series."""
    return bool(reported) and (reported >= cuda or (reported[0] == cuda[0] and cuda[0] >= 11))


def _instead(s: Snapshot, complaint: str) -> tuple[str, tuple[Install, ...]]:
    """Return a driver for torch's CUDA; where that is not told, one for today's, and the last torch for the CUDA that torch found the driver to have."""
    cuda = _cuda_of_driver(s)
    found = re.search(r"found version ([0-9]{4,5})\)", complaint)
    if cuda or found is None:
        return _floor(cuda)
    major = int(found[1]) // 1000
    floors = [(series, drivers.floor_for((series, 0))) for series in (13, 12) if series > major]
    newer = ", ".join(f"CUDA {series}: >= {floor.driver}" for series, floor in floors if floor)
    release = releases.newest_with(major)
    if not newer:
        return _floor(cuda)
    wanted, fix = f"a newer driver ({newer})", [Install(text=f"install a newer NVIDIA driver ({newer}), and reboot")]
    names = [] if release is None else [name for name in release.variants if int(name[2:-1]) == major]
    if release and names:
        variant = max(names, key=lambda name: int(name[2:]))
        wanted += f", or torch {release.torch} from the {variant} index"
        fix.append(_under_this_driver(build_for(s, release, variant)))
    return wanted, tuple(fix)


def _under_this_driver(build: Install) -> Install:
    return msgspec.structs.replace(build, text=f"or, if the driver cannot be changed: {build.text}")


def _floor(cuda: Version) -> tuple[str, tuple[Install, ...]]:
    """Return what torch's CUDA wants of the driver, and how to get it; no fix of its own where the CUDA is not known."""
    floor = drivers.floor_for(cuda) if cuda else None
    if floor is None:
        return "a newer driver, or a build of torch for an older CUDA", ()
    return f"driver >= {floor.driver}", (newer_driver(floor.driver),)


def _other_build(s: Snapshot, build: Torch, driver: Version) -> tuple[releases.Release, str, str] | None:
    """Return what to install under this driver: this release, else another one, built for a CUDA that it serves and for all GPUs here.

    The third part says where it is the last such release.
    """
    supported = drivers.max_cuda(driver)
    major = supported[0] if supported else 0
    floor = drivers.floor_for((major, 0)) if major >= 11 else None
    if floor is None or driver < floor.version:
        return None
    own = releases.release(build.version)
    for release in ([own] if own else []) + list(reversed(releases.releases())):
        if lacking_wheel(s, release):
            continue
        for variant in sorted(release.variants, key=lambda name: int(name[2:]), reverse=True):
            if int(variant[2:-1]) <= major and _serves(s, release.torch, variant):
                last = f" (the last with builds for CUDA {major})" if release == releases.newest_with(major) != own else ""
                return release, variant, last
    return None


def _serves(s: Snapshot, release: str, variant: str) -> bool:
    """Whether a build has code for every GPU whose capability is known, or its CUDA at least can make some, as gpu-arch-not-in-wheel judges."""
    capabilities = [cc for gpu in gpus_told(s) if not isinstance(cc := capability(gpu), Missing)]
    limits = releases.sm_range(version(releases.local_cuda(f"{release}+{variant}")))
    return all(_has_code(s, release, variant, cc, limits is None or _within(limits, cc)) for cc in capabilities)


def _within(limits: tuple[int, int], cc: tuple[int, int]) -> bool:
    """Whether a CUDA compiles for this capability, by the lowest and highest sm number that it knows."""
    return limits[0] <= cc[0] * 10 + cc[1] and cc[0] * 10 <= limits[1]


@rule(
    id="gpu-arch-not-in-wheel",
    title="torch contains no code for this GPU",
    severity=Severity.ERROR,
    cause="gpu-arch-not-in-wheel",
    fix=(Install(text="install a build of torch with code for this GPU: torchtune-sys generate install picks one"),),
)
def gpu_arch_not_in_wheel(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A wheel contains machine code for a list of GPU architectures; a GPU that is not covered cannot run a single kernel.

    Code runs on its own architecture and on later ones of the same major version (sm_86 code on 8.9, sm_100 code on 10.3, sm_120
    code on 12.1), so the list need not contain the GPU's exact number. PTX in the wheel also covers anything newer.

    Why it matters
        "no kernel image is available for execution on the device": new GPUs with old wheels, and old GPUs with new ones
        (CUDA 13 builds begin with Turing).

    When to leave it
        torch was built from source for this GPU; then use --live, which asks torch itself. A small card for a display beside GPUs that torch serves is
        unknown, unless as many ranks are asked about.

    References
        .ci/manywheel/build_env_setup.py in pytorch/pytorch; RELEASE.md, "Release Compatibility Matrix".
        DEVICE_REQUIREMENT in torch/cuda/__init__.py.
    """
    no_kernel = _said(s, (_NO_KERNEL,)) if _torch_unknown(s) else None
    said = _said(s, (_NO_CODE,)) or (None if no_kernel is None or _of_other_package(no_kernel) else no_kernel)
    if said is not None:
        yield Evidence(subject="GPU", seen=said, wanted="a build of torch with code for this GPU", source="torch")
        return
    nvidia_hardware(s)
    build, cuda = cuda_build(s)
    listed = build.arch_list if not isinstance(build.arch_list, Missing) else None
    seen = live(s)
    if listed is None and seen is not None and not isinstance(seen.arch_list, Missing):
        listed = seen.arch_list
    found: list[tuple[Gpu, Evidence]] = []
    for gpu in nvidia_gpus(s):
        cc = capability(gpu)
        told = (unsure(label(gpu), cc),) if isinstance(cc, Missing) else _fit(s, gpu, cc, build, cuda, listed)
        found += [(gpu, item) for item in told]
    fitting = [gpu for gpu, item in found if item.verdict is Verdict.PASS]
    displays = displays_beside(s, fitting)
    for gpu, item in found:
        yield _not_trained_on(gpu, item) if item.verdict is Verdict.FAIL and gpu in displays else item


def _not_trained_on(gpu: Gpu, item: Evidence) -> Evidence:
    why = Missing(Why.NOT_RECORDED, model_name(gpu), "whether training uses this GPU beside those that torch has code for")
    return msgspec.structs.replace(item, verdict=Verdict.UNKNOWN, why=why, fix=())


def _torch_unknown(s: Snapshot) -> bool:
    """Whether torch's own code cannot be judged; if it can, the missing kernel may be another package's."""
    return isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) or isinstance(s.gpu, Missing)


def _of_other_package(line: str) -> bool:
    """Whether the sentence names a source file that is not torch's (bitsandbytes, xformers, flash-attn and the like print theirs), or is HIP's.

    >>> _of_other_package("Error no kernel image is available for execution on the device at line 167 in file /src/csrc/ops.cu")
    True
    >>> _of_other_package("CUDA error: no kernel image is available for execution on the device")
    False
    >>> _of_other_package("RuntimeError: HIP error: no kernel image is available for execution on the device")
    True
    """
    names: list[str] = re.findall(r"(?<![\w./-])[\w./-]+\.(?:cuh?|cpp|hpp|h)\b", line)
    return "HIP error" in line or any(not re.search(r"(?:^|/)(?:aten|c10|torch)/", name) for name in names)


def _fit(
    s: Snapshot, gpu: Gpu, cc: tuple[int, int], build: Torch, cuda: Version, listed: tuple[str, ...] | None
) -> Iterator[Evidence]:
    number = f"sm_{cc[0]}{cc[1]}"
    if releases.on_chip(cc) and not listed:
        yield Evidence(subject=label(gpu), seen=f"{model_name(gpu)} ({number}) takes wheels of its own", verdict=Verdict.PASS)
        return
    table = releases.compiled_for(build.version, show(cuda), machine(s) or "x86_64")
    arches = listed or (table.arches if table else ())
    limits = releases.sm_range(cuda)
    if arches:
        fits = any(releases.runs(arch, cc, cuda) for arch in arches)
        seen = f"torch {build.version} is built for {' '.join(arches)}"
        source = "torch" if listed else table.source if table else ""
    elif limits:
        fits = _within(limits, cc)
        seen = f"torch {build.version}: CUDA {show(cuda)} compiles for sm_{limits[0]} to sm_{limits[1]}"
        source = "CUDA release notes"
    else:
        return
    better = None if fits else official_build(s, cc)
    wanted = f"code for {model_name(gpu)} ({number})"
    if better is not None:
        other = ", under another Python" if better.other_python else ""
        wanted += f": torch {better.torch} has it{other}" + (
            f", with a driver of {better.driver} or later" if better.driver else ""
        )
    yield Evidence(
        subject=label(gpu),
        seen=seen,
        wanted=wanted,
        verdict=Verdict.PASS if fits else Verdict.FAIL,
        source=source,
        fix=() if better is None else (better,),
    )


def official_build(s: Snapshot, cc: tuple[int, int], kept: str = "") -> Install | None:
    """Return the newest official build that runs on this GPU and Python under this driver, of the release ``kept`` if that has one; where there is
    none, the newest at all, and what it needs."""
    found = driver_version(s)
    driver = () if isinstance(found, Missing) else version(found)
    first = None
    newest_first = list(reversed(releases.releases()))
    for release in sorted(newest_first, key=lambda release: (bool(lacking_wheel(s, release)), release.torch != kept)):
        for variant in sorted(release.variants, key=lambda name: int(name[2:]), reverse=True):
            if not _has_code(s, release.torch, variant, cc):
                continue
            floor = drivers.floor_for(version(releases.local_cuda(f"{release.torch}+{variant}")))
            if not driver or floor is None or driver >= floor.version:
                return build_for(s, release, variant)
            first = first or build_for(s, release, variant, driver=floor.driver)
    return first


def _has_code(s: Snapshot, release: str, variant: str, cc: tuple[int, int], otherwise: bool = False) -> bool:
    """Whether a build has code for this capability; ``otherwise`` where the tables do not know for what it is compiled."""
    cuda = releases.local_cuda(f"{release}+{variant}")
    found = releases.compiled_for(release, cuda, machine(s) or "x86_64")
    return otherwise if found is None else any(releases.runs(code, cc, version(cuda)) for code in found.arches)


@rule(
    id="ptx-newer-than-driver",
    title="A program contains PTX that is too new for the driver",
    severity=Severity.ERROR,
    cause="ptx-newer-than-driver",
    fix=(
        Install(text="install a driver that supports the CUDA version the program was built with", needs=Needs.REBOOT),
        Advice(
            text="or rebuild it with machine code for this GPU (TORCH_CUDA_ARCH_LIST), which the driver does not need to compile"
        ),
    ),
)
def ptx_newer_than_driver(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The driver refused to compile PTX: within a CUDA major version it can run a newer toolkit's machine code, but not its PTX.

    This is detected with --live, which runs one small kernel, and in reports; files alone do not show it.

    Why it matters
        The kernel cannot run: "the provided PTX was compiled with an unsupported toolchain" (error 222).

    When to leave it
        Never.

    References
        https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    said = _said(s, (_PTX,))
    if said is not None:
        yield Evidence(subject="driver", seen=said, wanted="a driver as new as the PTX", source="CUDA")
        return
    imported = torch_imported(s)
    nvidia_hardware(s)
    cuda_build(s)
    need(imported)
    yield Evidence(subject="a kernel", seen="CUDA ran it, or does not complain of PTX", verdict=Verdict.PASS, source="torch")
