"""Whether the torch that is installed fits the driver and the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import cuda as drivers
from torchtune_sys.knowledge import torch as known
from torchtune_sys.model.actions import Advice, Install, Needs
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, need
from torchtune_sys.model.version import Version, show, version
from torchtune_sys.rules import torch_amp, torch_loader, torch_packages
from torchtune_sys.rules.gates import nvidia_gpus, nvidia_hardware, torch_build
from torchtune_sys.rules.torch_build import (
    OTHER_ACCELERATORS,
    capability,
    cuda_build,
    cuda_of,
    cuda_works,
    driver_version,
    installed,
    label,
    live,
    machine,
    named,
)

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
        Install(text="install a driver of at least the version named above, and reboot", needs=Needs.REBOOT),
        Advice(text="or, where the driver must stay: install the build of torch named above, made for the driver's CUDA"),
    ),
)
def driver_too_old(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A CUDA build of torch needs a driver from its CUDA series' floor on; below it, CUDA does not start at all.

    The floor is that of the major version (580.65.06 for all of 13, 525.60.13 for all of 12), not the driver that the
    toolkit came with: within a major version, newer builds run on older drivers.

    Why it matters
        torch.cuda.is_available() is False, and training fails or falls back to the CPU. The wheels on PyPI changed to
        CUDA 13 with torch 2.11, so an upgrade of torch alone brings this about.

    When to leave it
        Where a cuda-compat package for this CUDA is on the loader's path of a data-centre GPU; the rule passes if the
        driver's library then reports the newer CUDA.

    References
        https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
        Requirements in the metadata of torch's wheels on PyPI.
    """
    complaint = _complaint(s)
    if complaint is None:
        nvidia_hardware_or_driver(s)
    build, cuda = _build_or_none(s, complaint)
    if complaint is not None:
        yield Evidence(subject="driver", seen=complaint, wanted=_floor_text(cuda), source="torch")
        return
    if build is None:
        raise NotApplicable("no CUDA build of torch")
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
    if isinstance(found, Missing) and version(reported) and version(reported) < cuda:
        yield Evidence(subject=subject, seen=f"the driver supports CUDA {reported}", wanted=_floor_text(cuda), source="NVML")
        return
    driver = need(found)
    if floor is None:
        raise NotApplicable(f"no table knows the driver that CUDA {show(cuda)} needs")
    enough = version(driver) >= floor.version
    yield Evidence(
        subject=subject,
        seen=f"driver {driver}",
        wanted=f">= {floor.driver}" if enough else f"driver >= {floor.driver}{_other_build(build, version(driver))}",
        verdict=Verdict.PASS if enough else Verdict.FAIL,
        source=floor.source,
    )


def nvidia_hardware_or_driver(s: Snapshot) -> None:
    """As nvidia_hardware; a report that names a driver has a GPU too."""
    seen = () if isinstance(s.gpu, Missing) or s.gpu.vendor != "nvidia" else (s.gpu.driver_version, s.gpu.cuda_driver_version)
    if all(isinstance(look, Missing) for look in seen):
        nvidia_hardware(s)


def _complaint(s: Snapshot) -> str | None:
    """The sentence in which torch itself refuses the driver."""
    return _said(s, _TOO_OLD)


def _said(s: Snapshot, words: tuple[str, ...]) -> str | None:
    seen = live(s)
    lines = [] if seen is None else [seen.error]
    lines += [] if isinstance(s.python, Missing) else list(s.python.complaints)
    return next((line for line in lines if any(phrase in line for phrase in words)), None)


def _build_or_none(s: Snapshot, complaint: str | None) -> tuple[Torch | None, Version]:
    if complaint is None:
        return cuda_build(s)
    build = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else s.python.torch
    cuda = None if build is None else cuda_of(build)
    return build, () if cuda is None or isinstance(cuda, Missing) else version(cuda)


def _enough(reported: Version, cuda: Version) -> bool:
    """The driver's CUDA (that of a cuda-compat package where one is loaded) covers the build's series."""
    return bool(reported) and (reported >= cuda or (reported[0] == cuda[0] and cuda[0] >= 11))


def _floor_text(cuda: Version) -> str:
    floor = drivers.floor_for(cuda) if cuda else None
    return f"driver >= {floor.driver}" if floor else "a newer driver, or a build of torch for an older CUDA"


def _other_build(build: Torch, driver: Version) -> str:
    supported = drivers.max_cuda(driver)
    major = supported[0] if supported else 0
    floor = drivers.floor_for((major, 0)) if major >= 11 else None
    if floor is None or driver < floor.version:
        return ""
    variant = known.variant_below(build.version, major)
    if variant:
        return f", or torch {build.version.partition('+')[0]} from the {variant} index"
    last = known.newest_with(major)
    return f", or torch {last.torch} (the last with builds for CUDA {major})" if last else ""


@rule(
    id="gpu-arch-not-in-wheel",
    title="torch holds no code for this GPU",
    severity=Severity.ERROR,
    cause="gpu-arch-not-in-wheel",
    fix=(Install(text="install the build of torch that is named above"),),
)
def gpu_arch_not_in_wheel(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A wheel holds machine code for a list of GPU architectures; a GPU outside of that list cannot run a single kernel.

    Code runs on its own architecture and on later ones of the same major version (sm_86 code on 8.9, sm_100 code on 10.3,
    sm_120 code on 12.1), so the list need not name the GPU's own number. PTX in the wheel serves anything newer.

    Why it matters
        "no kernel image is available for execution on the device": new GPUs with old wheels, and old GPUs with new ones
        (CUDA 13 builds begin with Turing).

    When to leave it
        Where torch was built from source for this GPU; use --live then, which asks torch itself.

    References
        .ci/manywheel/build_env_setup.py in pytorch/pytorch; RELEASE.md, "Release Compatibility Matrix".
        DEVICE_REQUIREMENT in torch/cuda/__init__.py.
    """
    said = _said(s, (_NO_CODE,)) or (_said(s, (_NO_KERNEL,)) if _torch_unknown(s) else None)
    if said is not None:
        yield Evidence(subject="GPU", seen=said, wanted="a build of torch with code for this GPU", source="torch")
        return
    nvidia_hardware(s)
    build, cuda = cuda_build(s)
    told = build.arch_list if not isinstance(build.arch_list, Missing) else None
    seen = live(s)
    if told is None and seen is not None and not isinstance(seen.arch_list, Missing):
        told = seen.arch_list
    for gpu in nvidia_gpus(s):
        cc = capability(gpu)
        if isinstance(cc, Missing):
            yield unsure(label(gpu), cc)
        else:
            yield from _fit(s, gpu, cc, build, cuda, told)


def _torch_unknown(s: Snapshot) -> bool:
    """Whether torch's own code cannot be judged; if it can, the missing kernel may be another package's."""
    return isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) or isinstance(s.gpu, Missing)


def _fit(
    s: Snapshot, gpu: Gpu, cc: tuple[int, int], build: Torch, cuda: Version, told: tuple[str, ...] | None
) -> Iterator[Evidence]:
    number = f"sm_{cc[0]}{cc[1]}"
    if known.on_chip(cc) and not told:
        yield Evidence(subject=label(gpu), seen=f"{named(gpu)} ({number}) takes wheels of its own", verdict=Verdict.PASS)
        return
    table = known.compiled_for(build.version, show(cuda), machine(s) or "x86_64")
    arches = told or (table.arches if table else ())
    limits = known.sm_range(cuda)
    if arches:
        fits = any(known.runs(arch, cc, cuda) for arch in arches)
        seen, source = (
            f"torch {build.version} is built for {' '.join(arches)}",
            "torch" if told else table.source if table else "",
        )
    elif limits:
        fits = limits[0] <= cc[0] * 10 + cc[1] and (cc[0], 0) <= (limits[1] // 10, 0)
        seen, source = (
            f"torch {build.version}: CUDA {show(cuda)} compiles for sm_{limits[0]} to sm_{limits[1]}",
            "CUDA release notes",
        )
    else:
        return
    yield Evidence(
        subject=label(gpu),
        seen=seen,
        wanted=f"code for {named(gpu)} ({number})" + ("" if fits else _better(cc, machine(s) or "x86_64")),
        verdict=Verdict.PASS if fits else Verdict.FAIL,
        source=source,
    )


def _better(cc: tuple[int, int], arch: str) -> str:
    """The newest official build that runs on this GPU."""
    for release in reversed(known.releases()):
        for variant in sorted(release.variants, key=lambda name: int(name[2:]), reverse=True):
            cuda = known.local_cuda(f"{release.torch}+{variant}")
            found = known.compiled_for(release.torch, cuda, arch)
            if found and any(known.runs(code, cc, version(cuda)) for code in found.arches):
                return f": torch {release.torch}+{variant} has it"
    return ""


@rule(
    id="ptx-newer-than-driver",
    title="A program carries PTX that is newer than the driver can compile",
    severity=Severity.ERROR,
    cause="ptx-newer-than-driver",
    fix=(
        Install(text="install a driver of the CUDA version that the program was built with", needs=Needs.REBOOT),
        Advice(
            text="or rebuild it with machine code for this GPU (TORCH_CUDA_ARCH_LIST), which needs no compiling by the driver"
        ),
    ),
)
def ptx_newer_than_driver(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The driver refused to compile PTX. Within a major CUDA version machine code of a newer toolkit runs, PTX of a newer one does not.

    It shows under --live, which runs one small kernel, and in reports; files cannot tell it.

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
    if absent(need(s.python).live):
        raise NotApplicable("torch was not imported (--live)")
    nvidia_hardware(s)
    cuda_build(s)
    need(need(s.python).live)
    yield Evidence(subject="a kernel", seen="CUDA ran it, or does not complain of PTX", verdict=Verdict.PASS, source="torch")


@rule(
    id="cpu-only-build",
    title="torch is a CPU-only build on a host with an NVIDIA GPU",
    severity=Severity.ERROR,
    cause="cpu-only-build",
    fix=(
        Install(
            text="reinstall torch as a CUDA build: pip install --force-reinstall torch (or conda install with a cuda build string)"
        ),
    ),
    applies=nvidia_hardware,
)
def cpu_only_build(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The installed torch holds no GPU code at all, and the machine has a GPU.

    Why it matters
        Training runs on the CPU, or fails at the first .cuda(). It comes from the cpu index, from a solver that chose a
        cpu build string, or from PyPI on aarch64, where wheels up to 2.10 are CPU-only.

    When to leave it
        Where this interpreter is meant for data preparation, or another accelerator's plug-in does the work.

    References
        https://pytorch.org/get-started/locally/; the wheels' metadata on PyPI.
    """
    build = torch_build(s)
    gpu_builds = (build.cuda, build.hip, build.xpu)
    if any(not isinstance(kind, Missing) for kind in gpu_builds):
        yield Evidence(subject=f"torch {build.version}", seen="a GPU build", verdict=Verdict.PASS, source=build.location)
        return
    plugin = next((name for name in OTHER_ACCELERATORS if name in installed(s)), None)
    if plugin is not None:
        raise NotApplicable(f"{plugin} serves another accelerator")
    if not absent(build.cuda) and "+cpu" not in build.version:
        yield Evidence(subject=f"torch {build.version}", seen=f"built for CUDA {need(cuda_of(build))}", verdict=Verdict.PASS)
        return
    release = known.release(build.version)
    arm = machine(s) == "aarch64" and release is not None and not release.aarch64_has_cuda
    why = ": the aarch64 wheels on PyPI are CPU-only up to torch 2.10" if arm else ""
    yield Evidence(
        subject=f"torch {build.version}", seen=f"built without CUDA{why}", wanted="a CUDA build", source=build.location
    )


def amd_only(s: Snapshot) -> None:
    """AMD GPUs and no NVIDIA one."""
    if not isinstance(s.gpu, Missing) and s.gpu.vendor == "amd":
        return
    driver = need(s.driver)
    if absent(driver.amd_devices) or not need(driver.amd_devices):
        raise NotApplicable("no AMD GPU on this host")
    if not absent(driver.nvidia_devices) and need(driver.nvidia_devices):
        raise NotApplicable("this host has NVIDIA GPUs too")


@rule(
    id="cuda-build-on-amd-host",
    title="torch is a CUDA build on a host with AMD GPUs",
    severity=Severity.ERROR,
    cause="cuda-build-on-amd-host",
    fix=(
        Install(
            text="reinstall torch from the ROCm index: pip install torch --index-url https://download.pytorch.org/whl/rocm<version>"
        ),
    ),
    applies=amd_only,
)
def cuda_build_on_amd_host(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The machine's only GPUs are AMD's, and torch was built for CUDA.

    Why it matters
        torch.cuda.is_available() is False; pip's default wheel is the CUDA one, so any package that asks for torch
        replaces a ROCm build by it.

    When to leave it
        Where the AMD GPU only drives a display and training runs on the CPU.

    References
        https://pytorch.org/get-started/locally/
    """
    build = torch_build(s)
    if not isinstance(build.hip, Missing) or "+rocm" in build.version:
        return
    if absent(build.cuda):
        raise NotApplicable(f"torch {build.version} is a CPU-only build")
    cuda = need(cuda_of(build))
    yield Evidence(subject=f"torch {build.version}", seen=f"built for CUDA {cuda}", wanted="a ROCm build", source=build.location)


@rule(
    id="rocm-build-on-nvidia-host",
    title="torch is a ROCm build on a host with NVIDIA GPUs",
    severity=Severity.ERROR,
    fix=(Install(text="reinstall torch as a CUDA build: pip install --force-reinstall torch"),),
    applies=nvidia_hardware,
)
def rocm_build_on_nvidia_host(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch was built for AMD GPUs, and the machine has NVIDIA's.

    Why it matters
        torch.cuda.is_available() is False and training runs on the CPU.

    When to leave it
        On a machine that holds GPUs of both makers; the rule does not apply there.

    References
        https://pytorch.org/get-started/locally/
    """
    build = torch_build(s)
    if isinstance(build.hip, Missing):
        if absent(build.hip) or not isinstance(build.cuda, Missing) or absent(build.cuda):
            return
        need(build.hip)
        return
    if not isinstance(s.driver, Missing) and not isinstance(s.driver.amd_devices, Missing) and s.driver.amd_devices:
        raise NotApplicable("this host has AMD GPUs too")
    yield Evidence(
        subject=f"torch {build.version}", seen=f"built for ROCm {build.hip}", wanted="a CUDA build", source=build.location
    )


@rule(
    id="torch-debug-build",
    title="torch is a debug build",
    severity=Severity.WARNING,
    fix=(Install(text="install a release build of torch (built without DEBUG=1)"),),
)
def torch_debug_build(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch was compiled without optimisation, with all its internal checks.

    Why it matters
        The CPU side of training, launching kernels included, is several times slower.

    When to leave it
        While torch itself is being debugged.

    References
        CONTRIBUTING.md of pytorch/pytorch, "Build with debug symbols".
    """
    build = torch_build(s)
    if need(build.debug):
        yield Evidence(subject=f"torch {build.version}", seen="debug build", wanted="release build", source=build.location)


@rule(
    id="torch-import-fails",
    title="torch cannot be imported",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="read the error above; a clean virtual environment with torch alone shows whether a package or the host is the cause"
        ),
    ),
)
def torch_import_fails(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """pip lists torch and its package is gone; or, under --live, importing it in the judged interpreter ended in an error.

    Why it matters
        Nothing can train.

    When to leave it
        Never; but the error may come from the shell's environment rather than from torch.

    References
        What Python printed.
    """
    python = need(s.python)
    if isinstance(python.torch, Missing) and python.torch.why is Why.FAILED and python.torch.source.endswith("/torch"):
        yield Evidence(
            subject="torch", seen=python.torch.detail, wanted="the package beside its metadata", source=python.torch.source
        )
        return
    if absent(python.live):
        raise NotApplicable("torch was not imported (--live)")
    torch_build(s)
    found = python.live
    if isinstance(found, Missing) and found.source == "import torch":
        yield Evidence(subject="import torch", seen=found.detail, wanted="an import without error", source=found.source)
        return
    seen = need(found)
    yield Evidence(subject="import torch", seen=f"torch {seen.version}", verdict=Verdict.PASS, source="torch")


@rule(
    id="cuda-not-available-to-torch",
    title="torch cannot use the GPUs that the driver shows",
    severity=Severity.ERROR,
    fix=(Advice(text="see what CUDA said, and the findings on driver, device nodes and CUDA_VISIBLE_DEVICES"),),
    applies=nvidia_hardware,
)
def cuda_not_available(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Under --live: torch was imported, is a CUDA build, and torch.cuda.is_available() is False.

    Why it matters
        Training runs on the CPU or fails. Other findings usually name the cause; this one says that it is real.

    When to leave it
        Where CUDA_VISIBLE_DEVICES hides the GPUs on purpose.

    References
        https://pytorch.org/docs/stable/generated/torch.cuda.is_available.html
    """
    python = need(s.python)
    if absent(python.live):
        raise NotApplicable("torch was not imported (--live)")
    cuda_build(s)
    seen = need(python.live)
    available = need(seen.cuda_available)
    yield Evidence(
        subject="torch.cuda.is_available()",
        seen=f"{available}" + (f": {seen.error}" if seen.error else ""),
        wanted="True",
        verdict=Verdict.PASS if available else Verdict.FAIL,
        source="torch",
    )


RULES = (
    driver_too_old,
    gpu_arch_not_in_wheel,
    ptx_newer_than_driver,
    cpu_only_build,
    cuda_build_on_amd_host,
    rocm_build_on_nvidia_host,
    torch_debug_build,
    torch_import_fails,
    cuda_not_available,
    *torch_packages.RULES,
    *torch_loader.RULES,
    *torch_amp.RULES,
)
