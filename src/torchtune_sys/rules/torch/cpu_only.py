"""A rule on builds of torch without code for the GPU that is here."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.actions import Advice, Install
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.rules.gates import intel_cards_served, nvidia_hardware, torch_build
from torchtune_sys.rules.torch.common import OTHER_ACCELERATORS, cuda_of, installed, machine
from torchtune_sys.rules.torch.driver_and_gpu import official_build
from torchtune_sys.rules.torch.fixes import CUDA_BUILD

_JETSON_BUILD = (
    Install(
        text="a wheel made for this JetPack: pip install torch --index-url https://pypi.jetson-ai-lab.io/jp6/cu126 (JetPack 6, Orin), or "
        "NVIDIA's own from https://developer.download.nvidia.com/compute/redist/jp/; JetPack 7 on Thor takes the CUDA 13 wheels for "
        "aarch64 (https://download.pytorch.org/whl/cu130)"
    ),
    Advice(text="or a container that has it: nvcr.io/nvidia/pytorch with the tag -igpu, or those of dusty-nv/jetson-containers"),
)
"""The wheels of PyPI and of PyTorch's index hold no code for these GPUs, whichever CUDA they are of (Thor excepted)."""


_CONDA_BUILD = (
    Install(
        text="in the environment: conda install -c conda-forge pytorch-gpu (mamba, micromamba and pixi alike). conda takes the CPU's build where it sees no driver "
        "(conda info: __cuda), as on a login node or while an image is built: CONDA_OVERRIDE_CUDA=12.8 conda install … there"
    ),
)


def by_conda(s: Snapshot) -> bool:
    """Return whether torch is conda's own, which pip's would overwrite behind its back."""
    names = ("pytorch", "pytorch-cpu")
    return any(item.build and item.name in names for item in known(need(s.python).distributions, ()))


def jetson(s: Snapshot) -> bool:
    """Return whether this is a module with the GPU on the processor's chip, by its kernel or its GPU."""
    kernel = "" if isinstance(s.system, Missing) or isinstance(s.system.kernel, Missing) else s.system.kernel
    gpus = gpus_told(s)
    capabilities = [gpu.compute_capability for gpu in gpus]
    return kernel.endswith("-tegra") or any(not isinstance(cc, Missing) and releases.on_chip(cc) for cc in capabilities)


def _nvidia_or_intel(s: Snapshot) -> None:
    """Require a GPU of NVIDIA's, or a card of Intel's that its driver serves, which is no display beside AMD's GPUs."""
    if not intel_cards_served(s) or (not isinstance(s.driver, Missing) and known(s.driver.amd_devices, ())):
        nvidia_hardware(s)


_XPU_BUILD = Install(
    text="reinstall torch as a build for Intel GPUs: pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/xpu"
)


@rule(
    id="cpu-only-build",
    title="torch is a CPU-only build on a host with an NVIDIA or Intel GPU",
    severity=Severity.ERROR,
    cause="cpu-only-build",
    fix=(CUDA_BUILD,),
    applies=_nvidia_or_intel,
)
def cpu_only_build(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The installed torch contains no GPU code, but the machine has a GPU; or code for another maker's, where Intel's cards are alone.

    Why it matters
        Training runs on the CPU, or fails at the first .cuda(). Such a build comes from the cpu index, from a solver that picked
        a cpu build string, or from PyPI on aarch64, where wheels up to 2.10 are CPU-only.

    When to leave it
        This interpreter is used for data preparation, or another accelerator's plug-in does the work.

    References
        https://pytorch.org/get-started/locally/; the wheels' metadata on PyPI.
        https://docs.conda.io/projects/conda/en/stable/user-guide/tasks/manage-virtual.html (__cuda, CONDA_OVERRIDE_CUDA)
        https://forums.developer.nvidia.com/t/pytorch-for-jetson-version-1-9-0-now-available/72048 (wheels by JetPack)
    """
    build = torch_build(s)
    gpu_builds = (build.cuda, build.hip, build.xpu)
    if any(not isinstance(kind, Missing) for kind in gpu_builds):
        if isinstance(build.xpu, Missing) and (beside := _of_intel_alone(s)):
            seen = f"built for {'ROCm' if isinstance(build.cuda, Missing) else 'CUDA'}, beside {beside}"
            yield Evidence(
                subject=f"torch {build.version}", seen=seen, wanted="an XPU build", source=build.location, fix=(_XPU_BUILD,)
            )
            return
        yield Evidence(subject=f"torch {build.version}", seen="a GPU build", verdict=Verdict.PASS, source=build.location)
        return
    plugin = next((name for name in OTHER_ACCELERATORS if name in installed(s)), None)
    if plugin is not None:
        raise NotApplicable(f"{plugin} serves another accelerator")
    if not absent(build.cuda) and "+cpu" not in build.version:
        yield Evidence(subject=f"torch {build.version}", seen=f"built for CUDA {need(cuda_of(build))}", verdict=Verdict.PASS)
        return
    if beside := _of_intel_alone(s):
        seen = f"built without XPU, beside {beside}"
        yield Evidence(
            subject=f"torch {build.version}", seen=seen, wanted="an XPU build", source=build.location, fix=(_XPU_BUILD,)
        )
        return
    release = releases.release(build.version)
    arm = machine(s) == "aarch64" and release is not None and not release.aarch64_has_cuda
    why = ": the aarch64 wheels on PyPI are CPU-only up to torch 2.10" if arm else ""
    yield Evidence(
        subject=f"torch {build.version}",
        seen=f"built without CUDA{why}",
        wanted="a CUDA build",
        source=build.location,
        fix=_JETSON_BUILD if jetson(s) else _CONDA_BUILD if by_conda(s) else _with_cuda(s, build.version.partition("+")[0]),
    )


def _of_intel_alone(s: Snapshot) -> str:
    """Return how many cards of Intel's there are, where no GPU of another maker is; ``""`` otherwise."""
    cards = intel_cards_served(s)
    if not cards or need(need(s.driver).nvidia_devices) or known(need(s.driver).amd_devices, ()):
        return ""
    return f"{len(cards)} Intel GPU{'s' * (len(cards) > 1)}"


def _with_cuda(s: Snapshot, release: str) -> tuple[Install, ...]:
    """Return the CUDA build to install where the GPUs are all of one kind, which is known."""
    kinds = {gpu.compute_capability for gpu in gpus_told(s)}
    cc = kinds.pop() if len(kinds) == 1 else None
    build = None if cc is None or isinstance(cc, Missing) else official_build(s, cc, kept=release)
    return () if build is None else (build,)
