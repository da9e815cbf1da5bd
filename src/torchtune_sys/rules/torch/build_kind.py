"""Rules on the kind of torch build: is it complete, and can it use the GPUs at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from torchtune_sys.model.actions import Advice, Install, Needs
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, absent_or_unrecorded, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.gates import amd_gpus, nvidia_hardware, torch_build, torch_imported
from torchtune_sys.rules.torch.common import cuda_build, cuda_of, machine
from torchtune_sys.rules.torch.fixes import CUDA_BUILD, pip


def amd_only(s: Snapshot) -> None:
    """Require AMD GPUs and no NVIDIA one."""
    if not isinstance(s.gpu, Missing) and s.gpu.vendor == "amd":
        return
    amd_gpus(s)
    driver = need(s.driver)
    if not absent(driver.nvidia_devices) and need(driver.nvidia_devices):
        raise NotApplicable("this host has NVIDIA GPUs too")


@rule(
    id="cuda-build-on-amd-host",
    title="torch is a CUDA build on a host with AMD GPUs",
    severity=Severity.ERROR,
    cause="cuda-build-on-amd-host",
    fix=(
        Install(
            text="reinstall torch as the ROCm build for this GPU, from the index that https://pytorch.org/get-started/locally/ names"
        ),
    ),
    applies=amd_only,
)
def cuda_build_on_amd_host(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The machine has only AMD GPUs, but torch was built for CUDA.

    Why it matters
        torch.cuda.is_available() is False. pip's default wheel is the CUDA build, so installing any package that depends on torch
        can replace a ROCm build with it.

    When to leave it
        The AMD GPU only drives a display, and training runs on the CPU (not reported where no ROCm wheel serves the GPU).

    References
        https://pytorch.org/get-started/locally/
    """
    build = torch_build(s)
    if not isinstance(build.hip, Missing) or "+rocm" in build.version:
        return
    if absent(build.cuda):
        raise NotApplicable(f"torch {build.version} is a CPU-only build")
    cuda = need(cuda_of(build))
    here = {gfx for _, gfx in _amd_architectures(s)}
    if here and not here & _served():
        raise NotApplicable(f"no wheel for ROCm has code for the AMD GPU here ({' '.join(sorted(here))})")
    yield Evidence(
        subject=f"torch {build.version}",
        seen=f"built for CUDA {cuda}",
        wanted="a ROCm build",
        source=build.location,
        fix=_with_rocm(s),
    )


def _with_rocm(s: Snapshot) -> tuple[Install, ...]:
    """Return the newest ROCm build with code for the GPUs here and a wheel for this Python; nothing where one of these is not known."""
    from torchtune_sys.knowledge import install_rocm

    here = {gfx for _, gfx in _amd_architectures(s)}
    python = need(s.python).version
    if not here or isinstance(python, Missing) or machine(s) != install_rocm.MACHINE:
        return ()
    abi = "cp{}{}".format(*version(python)[:2])
    fitting = (item for item in install_rocm.builds() if here <= {*item.gfx} and abi in item.abis)
    return tuple(
        Install(text=pip(s, "install", f"torch=={item.torch}+{item.name}", "--index-url", item.index))
        for item in islice(fitting, 1)
    )


@rule(
    id="rocm-arch-not-in-wheel",
    title="torch's ROCm build contains no code for this AMD GPU",
    severity=Severity.ERROR,
    cause="rocm-gpu-arch-not-in-wheel",
    fix=(
        Install(
            text="build torch from source with PYTORCH_ROCM_ARCH set to the GPU's gfx name, or train on a GPU that the wheels "
            "support"
        ),
        Advice(
            text="for a close relative of a supported GPU, HSA_OVERRIDE_GFX_VERSION makes ROCm use that GPU's code (10.3.0 for "
            "gfx1031 and gfx1032); AMD does not test this"
        ),
    ),
    applies=amd_only,
    nothing="the architecture of these GPUs is not known",
)
def rocm_arch_not_in_wheel(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """ROCm wheels contain machine code for a list of GPUs; unlike CUDA's PTX, nothing in them runs on other or later GPUs. Or
    HSA_OVERRIDE_GFX_VERSION has ROCm take a GPU for one of another generation, whose code it does not run; set and empty, for none (gfx000).

    Why it matters
        "HIP error: invalid device function", "hipErrorNoBinaryForGpu", or a crash at the first kernel.

    When to leave it
        HSA_OVERRIDE_GFX_VERSION is set for a supported relative of this GPU in the job alone (where this session has it, nothing is reported).

    References
        https://github.com/ROCm/rocm-systems/pull/5686 (an empty override, which later releases pass over)
        PYTORCH_ROCM_ARCH in .ci/docker of pytorch/pytorch; https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html
    """
    build = torch_build(s)
    if _ROCM_WHEEL.fullmatch(build.version) is None:
        raise NotApplicable(f"torch {build.version} is not a PyTorch wheel with a known list of GPUs")
    from torchtune_sys.knowledge.install_rocm import NO_GPU, generation, override

    served, found = _served(), tuple(_amd_architectures(s))
    env = s.session if isinstance(s.session, Missing) else s.session.env
    taken_as = override({} if isinstance(env, Missing) and absent_or_unrecorded(env) else need(env))
    some = any(gfx in served for _, gfx in found)
    for name, gfx in found:
        if some and gfx in _OF_PROCESSORS:
            continue  # beside a card that is trained on
        misled = taken_as != "" and (taken_as == NO_GPU or generation(taken_as) != generation(gfx))
        taken = misled or (gfx not in served and taken_as in served)
        other = f" that is taken for {taken_as} (HSA_OVERRIDE_GFX_VERSION)" if taken else ""
        yield Evidence(
            subject=name,
            seen=f"{gfx}{other}, with torch {build.version}",
            wanted="a relative of it, or no override" if misled and gfx in served else f"one of {' '.join(sorted(served))}",
            verdict=Verdict.PASS if not misled and (gfx in served or other) else Verdict.FAIL,
            source="HSA_OVERRIDE_GFX_VERSION" if misled else "PYTORCH_ROCM_ARCH of the wheels",
            fix=(_NO_OVERRIDE,) if misled and gfx in served else (),
        )


_NO_OVERRIDE = Advice(text="unset HSA_OVERRIDE_GFX_VERSION: torch has code for this GPU itself", needs=Needs.NEW_PROCESS)
_OF_PROCESSORS = frozenset(("gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103"))
"""Graphics of processors (APU in the table of https://llvm.org/docs/AMDGPUUsage.html#processors), which ROCm lists beside the cards."""


def _served() -> frozenset[str]:
    """Return the GPUs that some wheel of torch for ROCm has code for."""
    from torchtune_sys.knowledge import install_rocm

    return frozenset(gfx for wheel in install_rocm.builds() for gfx in wheel.gfx)


_ROCM_WHEEL = pattern(r"2\.[0-9]{1,2}\.[0-9](?:\.dev[0-9]{8})?\+rocm(?:[56]\.[0-9]|7\.[012])(?:\.[0-9])?")


def _amd_architectures(s: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield (the GPU, its gfx name), by what torch calls it or by its PCI device."""
    from torchtune_sys.knowledge import install_rocm

    gpus = gpus_told(s)
    for gpu in gpus:
        found = re.search(r"\b(gfx[0-9a-f]{3,4})\b", gpu.name) if isinstance(gpu.name, str) else None
        if found:
            yield f"GPU {gpu.index}", found[1]
    if gpus or isinstance(s.pci, Missing) or isinstance(s.pci.devices, Missing):
        return
    for device in s.pci.devices:
        if device.vendor == "0x1002" and isinstance(device.device, str) and (gfx := install_rocm.gpu(device.device)[1]):
            yield f"GPU {device.address}", gfx


@rule(
    id="rocm-build-on-nvidia-host",
    title="torch is a ROCm build on a host with NVIDIA GPUs",
    severity=Severity.ERROR,
    fix=(CUDA_BUILD,),
    applies=nvidia_hardware,
)
def rocm_build_on_nvidia_host(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch was built for AMD GPUs, but the machine has NVIDIA GPUs.

    Why it matters
        torch.cuda.is_available() is False and training runs on the CPU.

    When to leave it
        The machine has GPUs of both vendors (the rule does not apply there).

    References
        https://pytorch.org/get-started/locally/
    """
    build = torch_build(s)
    if isinstance(build.hip, Missing):
        if not absent(build.hip) and isinstance(build.cuda, Missing) and "+cpu" not in build.version:
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
        The CPU side of training, including kernel launches, is several times slower.

    When to leave it
        You are debugging torch itself.

    References
        CONTRIBUTING.md of pytorch/pytorch, "Build with debug symbols"; the released torch 1.7.0 calls itself a debug build and is none:
        https://github.com/pytorch/pytorch/issues/47003
    """
    build = torch_build(s)
    if re.match(r"1\.7\.0(?![0-9])|1\.8\.0\.dev2020", build.version):
        raise NotApplicable("torch 1.7.0 and the nightly builds of its time call every build a debug build")
    if need(build.debug):
        yield Evidence(subject=f"torch {build.version}", seen="debug build", wanted="release build", source=build.location)


def _refused(s: Snapshot) -> str:
    """torch's own words in a report, of a program that wanted CUDA; as a warning they come wherever there is no GPU at all."""
    complaints = () if isinstance(s.python, Missing) else s.python.complaints
    amd = not isinstance(s.gpu, Missing) and (s.gpu.vendor == "amd" or bool(s.gpu.error))
    unexpected = next((line for line in complaints if not amd and any(words in line for words in _BROKEN)), "")
    if unexpected:
        return _of_cuda(" ".join(unexpected.split()))
    said = "Found no NVIDIA driver on your system"
    if not amd and any(said in line and "Warning:" not in line for line in complaints):
        return said
    listed = not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing) and bool(s.gpu.devices)
    return next((" ".join(line.split())[:160] for line in complaints if listed and any(words in line for words in _NO_START)), "")


def _of_cuda(line: str) -> str:
    """Return the error that a warning of torch quotes, or else what it says of CUDA.

    >>> _of_cuda("/a/b.py:9: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    ...          "before calling NumCudaDevices()? Error 802: system not yet initialized (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)")
    'Error 802: system not yet initialized'
    >>> _of_cuda("UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment")
    'CUDA initialization: CUDA unknown error'
    """
    error = re.search(r"\bError [0-9]{1,4}: [^(\n]{3,100}", line)
    return error[0].strip() if error else line[max(line.find("CUDA initialization"), 0) :].partition(" - ")[0][:160]


_BROKEN = ("CUDA initialization: CUDA unknown error", "CUDA initialization: Unexpected error from cudaGetDeviceCount")
"""How torch warns of a CUDA that fails in another way than by finding no driver or no GPU (c10/cuda/CUDAFunctions.cpp): there is one."""
_NO_START = ("CUDA driver initialization failed",)
"""How torch warns that CUDA did not start (c10/cuda/CUDAFunctions.cpp, torch/csrc/cuda/Module.cpp); with a GPU that the driver shows it is a fault."""


def _build_untold(s: Snapshot) -> bool:
    """Whether a report that was cut tells what torch saw, and not which torch: a build for CPUs sees no GPU either, and is no less an error."""
    return not isinstance(s.python, Missing) and isinstance(s.python.torch, Missing) and s.python.torch.why is Why.NOT_RECORDED


def _gpu_wanted(s: Snapshot) -> None:
    if not _refused(s):
        nvidia_hardware(s)


@rule(
    id="cuda-not-available-to-torch",
    title="torch cannot use the GPUs that the driver shows",
    severity=Severity.ERROR,
    fix=(Advice(text="see CUDA's message, and the findings on driver, device nodes and CUDA_VISIBLE_DEVICES"),),
    explained_by=("forward-compat-unsupported-gpu",),
    applies=_gpu_wanted,
)
def cuda_not_available(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Under --live: torch was imported, is a CUDA build, and torch.cuda.is_available() is False; or a report says that no driver was found.

    Why it matters
        Training runs on the CPU or fails. Other findings usually name the cause; this one confirms that it has an effect.

    When to leave it
        CUDA_VISIBLE_DEVICES hides the GPUs on purpose.

    References
        https://pytorch.org/docs/stable/generated/torch.cuda.is_available.html
    """
    if _refused(s):
        yield Evidence(subject="torch", seen=_refused(s), wanted="a CUDA that starts", source="torch")
        return
    imported = torch_imported(s)
    if not _build_untold(s):
        cuda_build(s)
    seen = need(imported)
    available = need(seen.cuda_available)
    yield Evidence(
        subject="torch.cuda.is_available()",
        seen=f"{available}" + (f": {seen.error}" if seen.error else ""),
        wanted="True",
        verdict=Verdict.PASS if available else Verdict.FAIL,
        source="torch",
    )
