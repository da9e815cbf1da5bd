"""The interpreter one trains with, and the packages that training depends on. torch is not imported."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

NOT_READ = Missing(Why.NOT_RECORDED, "interpreter", "not read")
"""What a field holds that the recording or report at hand does not have."""
NOT_LIVE = Missing(Why.ABSENT, "torch", "torch was not imported", "--live")
"""What PythonFacts.live holds unless ``--live`` was asked for."""


def normalised(name: str) -> str:
    """Return a distribution's name as PEP 503 compares it.

    >>> normalised("nvidia_cublas_cu12"), normalised("Flash--Attn")
    ('nvidia-cublas-cu12', 'flash-attn')
    """
    words = name.lower().replace("_", "-").replace(".", "-")
    while "--" in words:
        words = words.replace("--", "-")
    return words


OF_ONE_TORCH = frozenset(
    (
        "natten", "detectron2", "flash-attn", "flash-attn-3", "mamba-ssm", "causal-conv1d", "pyg-lib", "torch-scatter", "torch-sparse", "torch-cluster",
        "torch-spline-conv",
    )
)  # fmt: skip
"""Packages of which one library serves one release of torch, which the version of their wheels names, or their files' names alone. flashinfer's names one too: vLLM 0.6.4
to 0.6.6 shipped 0.1.6 made for torch 2.4 with torch 2.5.1 (its Dockerfile)."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One installed distribution (a ``*.dist-info`` or ``*.egg-info`` directory, or an entry of ``conda-meta``)."""

    name: str
    """Normalised: lower case, ``-`` for runs of ``-_.``."""
    version: str
    location: str
    """The sys.path entry that holds it, or the ``conda-meta`` directory; ``pip`` or ``conda`` in a report."""
    requires: tuple[str, ...] = ()
    """Requires-Dist lines, for torch, cuda-toolkit and what is built for one version of torch (torchvision, vllm …) only."""
    requires_python: str = ""
    tags: tuple[str, ...] = ()
    """Wheel tags, for torch only (``cp312-cp312-manylinux_2_28_x86_64``)."""
    weighed: bool = False
    """Whether the sizes of its libraries were compared with those in its RECORD (NVIDIA's wheels), or their folder was looked for (NumPy's)."""
    altered: tuple[str, ...] = ()
    """Libraries that are gone, or of another size than RECORD says: ``nvidia/nccl/lib/libnccl.so.2``."""
    build: str = ""
    """conda's build string (``py3.11_cuda12.1_cudnn8.9.2_0``); ``""`` for anything else."""


class CudaLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA library in a directory of LD_LIBRARY_PATH."""

    name: str
    """``libcudnn``"""
    abi: str
    """The number that the loader asks for, ``9`` of ``libcudnn.so.9``; ``""`` for a bare ``.so``."""
    version: str
    """The longest version among the file's names, ``9.5.1``; ``""`` where only the loader's name is there."""
    path: str


class LoaderChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the dynamic loader would take for a CUDA library that torch needs."""

    name: str
    """``libcudnn.so.9``"""
    path: Fact[str]
    """As the loader builds it, links not followed; ABSENT where it finds none."""
    found_by: str = ""
    """``DT_RPATH``, ``LD_LIBRARY_PATH``, ``DT_RUNPATH``, ``ld.so.cache``, ``default directory``, ``LD_PRELOAD``, ``torch/__init__.py``."""
    asked_by: str = ""
    """The object that needs it; ``""`` for what is opened by its full path."""
    version: str = ""
    """From the file's name, outside of the directory that holds torch; ``""`` where that does not tell."""


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
    """``sm_90`` …, where torch itself told (``--live``); the table of releases is the rules' business."""
    nccl: Fact[str]
    """Version that this torch runs with: the installed nvidia-nccl wheel, or what torch says (--live)."""
    cudnn: Fact[str]
    source: str = "files"
    """``files`` (inferred), ``live`` (torch imported in a child) or ``report``."""
    xpu: Fact[str] = NOT_READ
    """oneAPI version of an Intel GPU build; ABSENT for others."""


class Carrier(msgspec.Struct, frozen=True, kw_only=True):
    """The file system that holds torch."""

    mount_point: str
    filesystem: str
    """Type as in mountinfo: ext4, nfs4, lustre, overlay …"""
    kind: Fact[str]
    """What it lives on, as :class:`~torchtune_sys.model.facts.storage.StoragePath` has it: ``disk``, ``nfs``, ``parallel`` …"""
    noexec: bool = False
    """Whether it is mounted with noexec."""


class LoadedLink(msgspec.Struct, frozen=True, kw_only=True):
    """PCIe link of a GPU while pinned memory was copied to it."""

    address: str
    current_gts: Fact[float]
    current_width: Fact[int]
    """Lanes."""
    copy_gbytes_per_s: Fact[float]
    """Of 512 MB from page-locked host memory, 10^9 bytes."""


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
    """What cuda.init (or the import) said, ``""`` if nothing."""
    capabilities: Fact[tuple[tuple[int, int], ...]] = NOT_READ
    """Compute capability of each device, in CUDA's order."""
    links: Fact[tuple[LoadedLink, ...]] = NOT_READ
    libraries: Fact[tuple[str, ...]] = NOT_READ
    """Files of CUDA, OpenMP and MKL libraries that the process had mapped at the end: full paths."""
    mkl: Fact[str] = NOT_READ
    """Version of Intel's MKL that torch was built with (``2024.2``); ABSENT where it uses another BLAS."""


class PythonFacts(msgspec.Struct, frozen=True, kw_only=True):
    executable: Fact[str] = NOT_READ
    version: Fact[str] = NOT_READ
    """``3.12.4``."""
    implementation: Fact[str] = NOT_READ
    """``cpython``, ``pypy`` …"""
    machine: Fact[str] = NOT_READ
    """``x86_64``, ``aarch64``; of a 32-bit interpreter ``x86_64 (32-bit)``."""
    free_threaded: Fact[bool] = NOT_READ
    prefix: Fact[str] = NOT_READ
    base_prefix: Fact[str] = NOT_READ
    sys_path: Fact[tuple[str, ...]] = NOT_READ
    entries_gone: tuple[str, ...] = ()
    """Entries of sys.path that are not there: nothing is loaded from them."""
    user_site: Fact[str] = NOT_READ
    """The user's site directory if it is on sys.path; ABSENT if it is not."""
    glibc: Fact[str] = NOT_READ
    """The glibc that this interpreter runs on; ABSENT on musl."""
    others: Fact[tuple[Distribution, ...]] = NOT_READ
    """typing-extensions, sympy, huggingface-hub, hf-transfer and hf-xet, which torch requires or downloads go by, in sys.path order."""
    distributions: Fact[tuple[Distribution, ...]] = NOT_READ
    """The distributions that training depends on (torch, nvidia-*, triton, numpy …), shadowed ones included, in sys.path order."""
    leftovers: Fact[tuple[str, ...]] = NOT_READ
    """Directories that an interrupted pip left behind (``~orch``): full paths."""
    torch: Fact[Torch] = NOT_READ
    """ABSENT where no torch is installed."""
    carrier: Fact[Carrier] = NOT_READ
    """What torch is loaded from; ABSENT where none is installed."""
    byte_code: Fact[bool] = NOT_READ
    """Whether this Python's byte code of torch lies beside its source; ABSENT where no torch is installed."""
    byte_code_writable: Fact[bool] = NOT_READ
    """Whether the user may write it there, where there is none yet; ABSENT otherwise."""
    live: Fact[LiveTorch] = NOT_LIVE
    """ABSENT unless ``--live`` was asked for."""
    toolkits: Fact[tuple[str, ...]] = NOT_READ
    """CUDA toolkits found: ``/usr/local/cuda-12.4 (12.4.131)``."""
    ptxas: Fact[tuple[str, ...]] = NOT_READ
    """Those of them that have a bin/ptxas, by their place: partial installations (cuda-nvcc is a package of its own) have none."""
    nvcc: Fact[str] = NOT_READ
    """Version of the nvcc that torch would use to build extensions (CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda)."""
    nvcc_path: Fact[str] = NOT_READ
    library_path: Fact[tuple[str, ...]] = NOT_READ
    """LD_LIBRARY_PATH, split."""
    shadowing: Fact[tuple[CudaLibrary, ...]] = NOT_READ
    """CUDA libraries found in LD_LIBRARY_PATH directories, the first of each kind."""
    loader: Fact[tuple[LoaderChoice, ...]] = NOT_READ
    """The CUDA libraries that importing torch would load, found without importing it; ABSENT for a torch without CUDA."""
    linkable: Fact[tuple[str, ...]] = Missing(Why.ABSENT, "triton", "no Triton")
    """Files libcuda.so and libcuda.so.1 that the linker sees when Triton builds; empty where Triton itself finds no directory."""
    deepspeed_operators: Fact[bool] = Missing(Why.ABSENT, "deepspeed", "no DeepSpeed")
    """Whether DeepSpeed came with compiled operators."""
    bitsandbytes_builds: Fact[tuple[str, ...]] = Missing(Why.ABSENT, "bitsandbytes", "no bitsandbytes")
    """CUDA versions for which bitsandbytes brings a library, without the dot: 118, 126, 130."""
    headers: Fact[bool] = NOT_READ
    """Whether Python.h of this interpreter is there."""
    compiler: Fact[str] = NOT_READ
    """The C compiler that Triton would take (CC, or gcc, clang or cc on PATH): its path."""
    complaints: tuple[str, ...] = ()
    """In a report: what the loader, or CUDA through torch, complained of, one line each."""
    not_found: tuple[str, ...] = ()
    """Modules that ``import torch`` needs and this interpreter does not find."""
    start_errors: Fact[tuple[str, ...]] = NOT_READ
    """What Python printed of its own start that failed: lines of .pth files, sitecustomize; ABSENT where it was not started for it."""
    hiding: tuple[str, ...] = ()
    """Files on PYTHONPATH that Python imports in place of a module of the same name which ``import torch`` needs."""
    hiding_here: Fact[tuple[str, ...]] = NOT_READ
    """The same in the working directory, which a script that lies there, ``python -m`` and ``python -c`` put first; ABSENT where it is on sys.path anyway."""
    lost_parts: tuple[str, ...] = ()
    """Packages within torch that are not there (``distributed``), as a copy that was interrupted leaves it."""
    lost_backends: tuple[str, ...] = ()
    """Extensions that ``import torch`` loads by itself (entry points of torch.backends) whose module is gone: name, distribution and module."""
    cut_libraries: Fact[tuple[str, ...]] = Missing(Why.ABSENT, "torch", "not looked at")
    """torch's own libraries that are shorter than their headers say, each with its sizes; ABSENT where nobody looked."""
    conda: Fact[bool] = NOT_READ
    """Whether the interpreter belongs to a conda environment."""
    has_pip: Fact[bool] = NOT_READ
    """Whether pip is installed where the interpreter finds it: environments that uv made have none."""
    externally_managed: Fact[bool] = NOT_READ
    """Whether pip leaves this Python to its system or its manager: the file EXTERNALLY-MANAGED of PEP 668, outside virtual environments."""
    judged_as: str = ""
    """The user that the interpreter was started as, where it was not who ran the tool: root runs nobody else's files as root."""
    judged_without: tuple[str, ...] = ()
    """Variables of the session that an interpreter started as root was not given, as they name files that others can change."""
