"""Environments that other tools than torch's collect_env print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence.other_collectors import unfolded, values
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.facts.python import PythonFacts, Torch
from torchtune_sys.model.rule import Verdict

MMCV = """\
sys.platform: linux
Python: 3.8.18 (default, Sep 11 2023, 13:40:15) [GCC 11.2.0]
CUDA available: True
GPU 0,1: NVIDIA GeForce RTX 4090
CUDA_HOME: /usr/local/cuda
NVCC: Cuda compilation tools, release 11.3, V11.3.109
GCC: gcc (Ubuntu 9.4.0-1ubuntu1~20.04.2) 9.4.0
PyTorch: 1.12.1+cu113
PyTorch compiling details: PyTorch built with:
  - GCC 9.3
  - CUDA Runtime 11.3
  - NVCC architecture flags: -gencode;arch=compute_70,code=sm_70;-gencode;arch=compute_86,code=sm_86
  - Build settings: CUDA_VERSION=11.3
TorchVision: 0.13.1+cu113
OpenCV: 4.8.0
"""
DETECTRON2 = """\
-------------------------------  ------------------------------------------
sys.platform                     linux
Python                           3.9.19 (main, May  6 2024, 19:43:03) [GCC 11.2.0]
numpy                            2.0.1
PyTorch                          2.0.1+cu117 @/v/lib/python3.9/site-packages/torch
PyTorch debug build              False
GPU available                    Yes
GPU 0,1,2,3                      Tesla V100-SXM2-32GB (arch=7.0)
Driver version                   515.65.01
torchvision                      0.15.2+cu117 @/v/lib/python3.9/site-packages/torchvision
-------------------------------  ------------------------------------------
"""
TRANSFORMERS = """\
- `transformers` version: 4.44.2
- Platform: Linux-5.15.0-122-generic-x86_64-with-glibc2.35
- Python version: 3.10.12
- PyTorch version (GPU?): 2.4.1+cu121 (False)
- GPU type: NVIDIA L4
"""
OTHERS = (
    ("DeepSpeed general environment info:\ntorch version .................... 2.1.2+cu118\ntorch cuda version ............... 11.8\n", "2.1.2+cu118", ()),
    ("pytorch version: 2.6.0+cu124\nDevice: cuda:0 NVIDIA GeForce RTX 5080 : cudaMallocAsync\n", "2.6.0+cu124", ("NVIDIA GeForce RTX 5080",)),
    ("Ultralytics YOLOv8.2.0 Python-3.11.9 torch-2.3.1+cu121 CUDA:0 (NVIDIA L4, 22700MiB)\n", "2.3.1+cu121", ("NVIDIA L4",)),
)  # fmt: skip


def facts(text: str) -> tuple[str, tuple[object, ...], dict[str, Verdict]]:
    """torch's version, the GPUs' names, and the verdicts."""
    seen = evidence.read(text, "issue.txt")
    assert seen is not None and isinstance(seen.python, PythonFacts) and isinstance(seen.python.torch, Torch)
    gpus = seen.gpu.devices if isinstance(seen.gpu, GpuFacts) and isinstance(seen.gpu.devices, tuple) else ()
    verdicts = {name: result.verdict for name, result in judge(seen).items()}
    return seen.python.torch.version, tuple(gpu.name for gpu in gpus), verdicts


def test_mmcv_tells_the_code_that_torch_has() -> None:
    version, gpus, verdicts = facts(MMCV)
    assert (version, gpus) == ("1.12.1+cu113", ("NVIDIA GeForce RTX 4090",) * 2)
    assert verdicts["gpu-arch-not-in-wheel"] is Verdict.PASS  # sm_86 code runs on 8.9
    assert verdicts["torch-torchvision-mismatch"] is Verdict.PASS
    assert facts(MMCV.replace("sm_86", "sm_75"))[2]["gpu-arch-not-in-wheel"] is Verdict.FAIL


@pytest.mark.parametrize("change", [str, lambda text: text.replace("\n", "\r\n"), lambda text: "> " + text.replace("\n", "\n> ")])
def test_detectron2(change: object) -> None:
    assert callable(change)
    version, gpus, verdicts = facts(change(DETECTRON2))
    assert (version, len(gpus)) == ("2.0.1+cu117", 4)
    assert {name for name, found in verdicts.items() if found is Verdict.FAIL} >= {"numpy2-with-old-torch"}
    assert verdicts["driver-too-old"] is Verdict.PASS


def test_transformers_says_what_torch_saw() -> None:
    version, gpus, verdicts = facts(TRANSFORMERS)
    assert (version, gpus) == ("2.4.1+cu121", ("NVIDIA L4",))
    assert verdicts["cuda-not-available-to-torch"] is Verdict.FAIL
    assert facts(TRANSFORMERS.replace("(False)", "(True)"))[2]["cuda-not-available-to-torch"] is Verdict.PASS


@pytest.mark.parametrize(("text", "version", "gpus"), OTHERS)
def test_shorter_ones(text: str, version: str, gpus: tuple[str, ...]) -> None:
    assert facts(text)[:2] == (version, gpus)


def test_a_report_in_one_paragraph() -> None:
    lines = (
        "Collecting environment information...", "PyTorch version: 2.11.0+cu130", "Is debug build: False", "CUDA used to build PyTorch: 13.0",
        "OS: Ubuntu 22.04.4 LTS (x86_64)", "Python version: 3.10.12", "Is CUDA available: False", "GPU models and configuration:",
        "GPU 0: NVIDIA H100 NVL", "GPU 1: NVIDIA H100 NVL", "Nvidia driver version: 535.183.06", "[pip3] numpy==1.26.4", "[pip3] torch==2.11.0",
    )  # fmt: skip
    folded, whole = facts(" ".join(lines)), facts("\n".join(lines))
    assert folded == whole
    assert folded[2]["driver-too-old"] is Verdict.FAIL
    assert unfolded("\n".join(lines)) == "\n".join(lines)


@given(st.text(max_size=400) | st.from_regex(r"(sys\.platform|PyTorch|GPU 0|- PyTorch version| : |\n|,|\d){1,30}"))
def test_any_text(text: str) -> None:
    values(unfolded(text))
