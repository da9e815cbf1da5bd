"""Outputs that lack their beginning or their end are judged as what is left, with a word about it; whole ones get no such word."""

from __future__ import annotations

import pytest

from torchtune_sys import evidence
from torchtune_sys.evidence.cuts import cuts

ENVIRONMENT = """Collecting environment information...
PyTorch version: 2.5.1+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4

OS: Ubuntu 22.04.3 LTS (x86_64)
Python version: 3.12.8 (main) [GCC 11.4.0] (64-bit runtime)
Is CUDA available: True
CUDA_MODULE_LOADING set to: LAZY
GPU models and configuration: GPU 0: NVIDIA H20
Nvidia driver version: 550.54.14
Is XNNPACK available: True

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.5.1
[conda] Could not collect
"""
TABLE = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.107.02             Driver Version: 550.107.02     CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A40                     On  |   00000000:21:00.0 Off |                    0 |
|  0%   47C    P0             79W /  300W |     477MiB /  46068MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+
"""
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-15\t0\nGPU1\tNV4\t X \t16-31\t1\n"


@pytest.mark.parametrize("text", [ENVIRONMENT, TABLE, MATRIX, ENVIRONMENT + TABLE, "pip list\n", ""])
def test_whole_outputs_get_no_word(text: str) -> None:
    assert cuts(text) == ""


def lines(text: str, first: int, last: int | None = None) -> str:
    return "\n".join(text.split("\n")[first:last])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (lines(ENVIRONMENT, 0, 11), "collect_env ends early"),
        (lines(ENVIRONMENT, 2), "collect_env lacks its beginning"),
        (lines(ENVIRONMENT, 7, 11), "collect_env lacks its beginning; collect_env ends early"),
        (lines(TABLE, 0, 9), "nvidia-smi ends early"),
        (lines(TABLE, 7), "nvidia-smi lacks its beginning"),
        (lines(MATRIX, 0, 2), "the topology has rows for 1 of 2 GPUs"),
    ],
)
def test_what_is_cut_off_is_said(text: str, told: str) -> None:
    for part in told.split("; "):
        assert part in cuts(text)


def test_the_report_says_it_beside_what_it_was_read_from() -> None:
    seen = evidence.read(lines(ENVIRONMENT, 0, 11), "report")
    assert seen is not None
    assert seen.origin == "report (collect_env), cut off: collect_env ends early (the packages are not known)"
    assert not isinstance(seen.gpu, str)
    assert seen.gpu.devices[0].name == "NVIDIA H20"  # type: ignore[union-attr,index]
