"""HMM that stops CUDA, and nvidia-peermem: by what CUDA says, by the log, and what it is not taken for."""

from __future__ import annotations

import pytest

from conftest import judge, load
from torchtune_sys import engine, evidence
from torchtune_sys.model.rule import Verdict
from torchtune_sys.rules import by_id

TORCH = "live-torch:/data/train/.venv/bin/python3"
SAYS = "CUDA driver initialization failed, you might not have a CUDA gpu."


def verdict(error: str, **overlay: object) -> str:
    answer = {
        "version": "2.11.0+cu130", "cuda_available": False, "device_count": 8, "arch_list": ["sm_90"], "cudnn": "9.19.0", "nccl": "2.28.9",
        "tf32_matmul": True, "tf32_cudnn": True, "bf16_native": True, "num_threads": 32, "cpu_capability": "AVX512", "error": error,
        "capabilities": [[9, 0]] * 8,
    }  # fmt: skip
    seen = load("healthy", answers={TORCH: answer, **overlay.pop("answers", {})}, intent={"live": True}, **overlay)  # type: ignore[dict-item]
    return judge(seen)["uvm-hmm-stops-cuda"].verdict.value


def test_error_3_beside_gpus_that_the_driver_shows_is_told_of_hmm_and_of_nothing_else() -> None:
    assert verdict(SAYS) == "fail"
    assert verdict("CUDA unknown error - this may be due to an incorrectly set up environment") == "pass"
    assert verdict(SAYS, files={"/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n"}) == "pass"
    assert verdict(SAYS, files={"/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n"}) == "fail"
    assert verdict(SAYS, answers={"nvml": {"error": "timeout", "detail": "no answer"}}) == "unknown"


REPORT = """PyTorch version: 2.8.0+cu128
Is debug build: False
CUDA used to build PyTorch: 12.8
OS: Rocky Linux 9.6 (Blue Onyx) (x86_64)
Python platform: Linux-5.14.0-570.23.1.el9_6.x86_64-x86_64-with-glibc2.34
Is CUDA available: False
GPU models and configuration:
GPU 0: NVIDIA RTX 6000 Ada Generation
Nvidia driver version: {driver}
/usr/lib/python3/site-packages/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: {said} (Triggered internally at c10/cuda/CUDAFunctions.cpp:109.)
"""


@pytest.mark.parametrize(
    ("driver", "said", "told"), [("575.57.08", SAYS, True), ("470.57.02", SAYS, False), ("575.57.08", "x", False)]
)
def test_a_pasted_report_tells_it_too(driver: str, said: str, told: bool) -> None:
    seen = evidence.read(REPORT.format(driver=driver, said=said) + "[   12.5] Linux version 5.14.0\n", "report")
    assert seen is not None
    (result,) = engine.judge(seen, (by_id()["uvm-hmm-stops-cuda"],))
    assert (result.verdict is Verdict.FAIL) is told


def test_a_module_that_was_built_against_another_rdma_stack_is_named() -> None:
    result = judge(load("gpudirect-rdma-disabled.fail.refused"))["gpudirect-rdma-disabled"]
    assert "ib_register_peer_memory_client" in result.evidence[0].seen
    assert "build the driver's modules again" in str(result.evidence[0].fix)
