"""Reports of other systems and of old releases: these train, and little or nothing may be said of them. The contents are invented."""

from __future__ import annotations

import pytest

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence import collect_env
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing

REST = """\
Is debug build: False
CUDA used to build PyTorch: {cuda}
ROCM used to build PyTorch: {rocm}

OS: {os}
GCC version: Could not collect
Clang version: Could not collect
CMake version: Could not collect
Libc version: {libc}

Python version: {python} (main, Aug 14 2025, 17:47:21) [GCC 13.3.0] (64-bit runtime)
Python platform: {platform}
Is CUDA available: True
CUDA runtime version: Could not collect
CUDA_MODULE_LOADING set to: LAZY
GPU models and configuration: {gpu}
Nvidia driver version: {driver}
cuDNN version: Could not collect
HIP runtime version: N/A
MIOpen runtime version: N/A
Is XNNPACK available: True

Versions of relevant libraries:
{wheels}
"""
UBUNTU = {"os": "Ubuntu 22.04.5 LTS (x86_64)", "libc": "glibc-2.35", "platform": "Linux-6.8.0-40-generic-x86_64-with-glibc2.35"}
JETSON = {"os": "Ubuntu 22.04.4 LTS (aarch64)", "libc": "glibc-2.35", "platform": "Linux-5.15.136-tegra-aarch64-with-glibc2.35"}
GRACE = {
    "os": "Ubuntu 24.04.3 LTS (aarch64)",
    "libc": "glibc-2.39",
    "platform": "Linux-6.8.0-1043-nvidia-64k-aarch64-with-glibc2.39",
}
BIONIC = {"os": "Ubuntu 18.04.6 LTS (x86_64)", "libc": "glibc-2.27", "platform": "Linux-4.15.0-213-generic-x86_64-with-glibc2.17"}
WINDOWS = {"os": "Microsoft Windows 11 Pro (10.0.26100 64-bit)", "libc": "N/A", "platform": "Windows-11-10.0.26100-SP0"}
MAC = {"os": "macOS 15.3.1 (arm64)", "libc": "N/A", "platform": "macOS-15.3.1-arm64-arm-64bit"}
CONDA = """\
[pip3] numpy==2.1.3
[pip3] torch==2.5.1
[pip3] torchvision==0.20.1
[pip3] triton==3.1.0
[conda] pytorch                   2.5.1           py3.11_cuda12.1_cudnn9.1.0_0    pytorch
[conda] pytorch-cuda              12.1                 ha16c6d3_6    pytorch
[conda] torchtriton               3.1.0                     py311    pytorch"""
SHAPES = {
    "conda": (UBUNTU, "2.5.1", "12.1", "3.11.10", "GPU 0: NVIDIA GeForce RTX 3090", "550.120", CONDA, set()),
    "nightly": (
        UBUNTU, "2.16.0.dev20261101+cu132", "13.2", "3.14.0", "GPU 0: NVIDIA GeForce RTX 5090", "595.45.04",
        "[pip3] torch==2.16.0.dev20261101+cu132\n[pip3] torchvision==0.31.0.dev20261101+cu132\n[pip3] triton==3.9.0+git1234abcd", set(),
    ),
    "grace": (GRACE, "2.9.1+cu130", "13.0", "3.12.3", "GPU 0: NVIDIA GH200 480GB", "580.95.05", "[pip3] torch==2.9.1+cu130", set()),
    "jetson": (
        JETSON, "2.3.0", "12.2", "3.10.12", "Orin (nvgpu)", "N/A",
        "[pip3] torch==2.3.0\n[pip3] torchvision==0.18.0a0+6043bc2", set(),
    ),
    "windows": (WINDOWS, "2.6.0+cu124", "12.4", "3.12.7", "GPU 0: NVIDIA GeForce RTX 4070", "566.36", "[pip3] torch==2.6.0+cu124", set()),
    "mac": (MAC, "2.6.0", "None", "3.12.9", "No CUDA", "No CUDA", "[pip3] torch==2.6.0", set()),
    "kepler": (
        BIONIC, "1.13.1+cu117", "11.7", "3.8.16", "\nGPU 0: Tesla K80\nGPU 1: Tesla K80\n", "470.199.02",
        "[pip3] numpy==1.24.2\n[pip3] torch==1.13.1\n[pip3] torchvision==0.14.1",
        {"fp16-without-speed", "torch-release-old"},
    ),
    "rocm": (
        UBUNTU, "2.10.0+rocm7.1", "N/A", "3.12.3", "AMD Instinct MI300X (gfx942:sramecc+:xnack-)", "Could not collect",
        "[pip3] torch==2.10.0+rocm7.1\n[pip3] torchvision==0.25.0+rocm7.1\n[pip3] triton==3.5.1", set(),
    ),
}  # fmt: skip
"""Place, torch, CUDA, Python, GPUs, driver, packages, and all that is found: these systems train."""


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_false_is_said_of_other_shapes(shape: str) -> None:
    place, torch, cuda, python, gpu, driver, wheels, wanted = SHAPES[shape]
    rocm = "7.1.25424" if "rocm" in torch else "N/A"
    rest = REST.format(**place, cuda=cuda, rocm=rocm, python=python, gpu=gpu, driver=driver, wheels=wheels)
    seen = evidence.read(f"Collecting environment information...\nPyTorch version: {torch}\n{rest}", "report")
    assert seen is not None
    found = judge(seen)
    assert {id_ for id_, result in found.items() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)} == wanted


@pytest.mark.parametrize(
    ("place", "name"), [(WINDOWS, "Microsoft Windows 11 Pro (not Linux)"), (MAC, "macOS 15.3.1 (not Linux)")]
)
def test_another_system_is_named(place: dict[str, str], name: str) -> None:
    found = collect_env.parse_os(place["os"])
    assert not isinstance(found, Missing) and found.pretty_name == name


OLD = """\
PyTorch version: {torch}
Is debug build: {debug}
CUDA used to build PyTorch: {cuda}
{rocm}
OS: Ubuntu 18.04.5 LTS
Python version: 3.7
Is CUDA available: {available}
CUDA runtime version: 10.1.243
GPU models and configuration: {gpu}
Nvidia driver version: {driver}

Versions of relevant libraries:
[pip3] numpy==1.19.2
[pip3] torch=={torch}
"""
HIP = "ROCM used to build PyTorch: 3.9.20412-6d111f85"


def found_in(**values: str) -> dict[str, Verdict]:
    told = {"debug": "No", "rocm": "", "available": "No", "gpu": "GPU 0: GeForce RTX 2070", "driver": "440.33.01", **values}
    seen = evidence.read(OLD.format(**told), "report")
    assert seen is not None
    return {id_: result.verdict for id_, result in judge(seen).items()}


def test_an_amd_gpu_may_have_a_number_for_a_name() -> None:
    """The layout of github.com/pytorch/pytorch/pull/44106."""
    amd = {"torch": "1.8.0a0+1f2e3d4", "cuda": "N/A", "available": "True"}
    found = found_in(**amd, rocm=HIP, gpu="Device 738c", driver="Could not collect")
    assert found["rocm-build-on-nvidia-host"] is not Verdict.FAIL
    assert found_in(**amd, rocm=HIP)["rocm-build-on-nvidia-host"] is Verdict.FAIL


@pytest.mark.parametrize("rocm", ["", "ROCM used to build PyTorch: N/A"])
def test_a_cpu_build_of_old_is_known(rocm: str) -> None:
    """Until torch 1.13 "Could not collect" stands for a build without CUDA: github.com/pytorch/pytorch/issues/44303."""
    found = found_in(torch="1.4.0", cuda="Could not collect", rocm=rocm)
    assert found["cpu-only-build"] is Verdict.FAIL
    assert found_in(torch="1.4.0", cuda="Could not collect", rocm=HIP)["cpu-only-build"] is not Verdict.FAIL
    assert found_in(torch="1.4.0", cuda="Could not collect", available="Yes")["cpu-only-build"] is not Verdict.FAIL


def test_torch_1_7_0_calls_itself_a_debug_build() -> None:
    """github.com/pytorch/pytorch/issues/47003: of the released wheels."""
    assert found_in(torch="1.7.0+cu101", cuda="10.1", debug="True")["torch-debug-build"] is Verdict.NA
    assert found_in(torch="1.7.1+cu101", cuda="10.1", debug="True")["torch-debug-build"] is Verdict.FAIL
