"""The interpreter one trains with, and the packages that training depends on. torch is not imported."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One installed distribution (a ``*.dist-info`` or ``*.egg-info`` directory)."""

    name: str
    """Normalised: lower case, ``-`` for runs of ``-_.``."""
    version: str
    location: str
    """The sys.path entry that holds it."""
    requires: tuple[str, ...] = ()
    """Requires-Dist lines, for torch and torchvision only."""
    requires_python: str = ""
    tags: tuple[str, ...] = ()
    """Wheel tags, for torch only (``cp312-cp312-manylinux_2_28_x86_64``)."""


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    """As torch.__version__: ``2.15.0+cu132``."""
    location: str
    cuda: Fact[str]
    """CUDA that this build was made for (``13.2``); ABSENT for CPU-only and ROCm builds."""
    hip: Fact[str]
    """ROCm version; ABSENT for others."""
    debug: Fact[bool]
    arch_list: Fact[tuple[str, ...]]
    """``sm_90`` …, from the table of releases, from the wheel, or (``--live``) from torch itself."""
    nccl: Fact[str]
    """Version that this torch runs with: the installed nvidia-nccl wheel, or what torch says (--live)."""
    cudnn: Fact[str]
    source: str = "files"
    """``files`` (inferred), ``live`` (torch imported in a child) or ``report``."""


class LiveTorch(msgspec.Struct, frozen=True, kw_only=True):
    """What a child saw that imported torch (``--live``)."""

    version: str
    cuda_available: Fact[bool]
    device_count: Fact[int]
    arch_list: Fact[tuple[str, ...]]
    cudnn: Fact[str]
    nccl: Fact[str]
    tf32_matmul: Fact[bool]
    tf32_cudnn: Fact[bool]
    bf16_native: Fact[bool]
    """is_bf16_supported(including_emulation=False)."""
    num_threads: Fact[int]
    cpu_capability: Fact[str]
    error: str = ""
    """What cuda.init said, ``""`` if nothing."""


class PythonFacts(msgspec.Struct, frozen=True, kw_only=True):
    executable: Fact[str]
    version: Fact[str]
    """``3.12.4``."""
    implementation: Fact[str]
    machine: Fact[str]
    free_threaded: Fact[bool]
    prefix: Fact[str]
    base_prefix: Fact[str]
    sys_path: Fact[tuple[str, ...]]
    user_site: Fact[str]
    """The user's site directory if it is on sys.path; ABSENT if it is not."""
    glibc: Fact[str]
    """The glibc that this interpreter runs on."""
    distributions: Fact[tuple[Distribution, ...]]
    """The distributions that training depends on (torch, nvidia-*, triton, numpy …), shadowed ones included, in sys.path order."""
    torch: Fact[Torch]
    """ABSENT where no torch is installed."""
    live: Fact[LiveTorch]
    """ABSENT unless ``--live`` was asked for."""
    toolkits: Fact[tuple[str, ...]]
    """CUDA toolkits found: ``/usr/local/cuda-12.4 (12.4.131)``."""
    nvcc: Fact[str]
    """Version of the nvcc that PATH or CUDA_HOME gives."""
    library_path: Fact[tuple[str, ...]]
    """LD_LIBRARY_PATH, split."""
    shadowing: Fact[tuple[str, ...]]
    """CUDA libraries found in LD_LIBRARY_PATH directories: full paths."""
    conda: Fact[bool]
