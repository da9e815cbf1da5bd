"""Lines of public reports that were passed over in silence once."""

from __future__ import annotations

import pytest

from conftest import judge
from torchtune_sys import engine, evidence
from torchtune_sys.model.rule import Verdict
from torchtune_sys.rules import CATALOGUE


def failing(text: str) -> set[str]:
    seen = evidence.read(text, "report")
    assert seen is not None
    return {result.rule.id for result in engine.judge(seen, CATALOGUE) if result.verdict is Verdict.FAIL}


SMI = """
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 525.105.17   Driver Version: 525.105.17   CUDA Version: 12.0     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla T4            Off  | 00000000:00:1E.0 Off |                    0 |
| N/A   30C    P8    14W /  70W |      0MiB / 15360MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""


@pytest.mark.parametrize(
    "words",
    [
        "CUDA driver initialization failed, you might not have a CUDA gpu. (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:109.)",
        "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES",
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices()",
    ],
)
def test_torch_that_cannot_start_cuda_on_gpus_that_the_driver_shows_is_a_finding(words: str) -> None:
    warning = f"/x/torch/cuda/__init__.py:88: UserWarning: CUDA initialization: {words}\n  return torch._C._cuda_getDeviceCount() > 0\nFalse\n"
    assert "cuda-not-available-to-torch" in failing(warning + SMI)
    assert "cuda-not-available-to-torch" not in failing(SMI)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("[64689.125237] nvidia-uvm: uvm_pmm_gpu.c:3176 devmem_alloc_pagemap[pid:92821] request_free_mem_region() err -34", "uvm-hmm-stops-cuda"),
        ("[Tue Sep  8 17:16:02 2026] nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)", "peermem-refused-logged"),
        ("[25033.266922] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing", "peermem-invalid-context-logged"),
        ("[   81.970029] NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0", "gpu-initialisation-failed"),
        ("[ 3600.832490] INFO: task ll_cfg_requeue:4037 blocked for more than 120 seconds.\n[ 3600.851751]  [<ffffffffc05523b4>] llog_process_or_fork+0x244/0x450 [obdclass]", "cpu-lockup-logged"),
        ("[ 3600.832490] INFO: task kworker/3:1:4037 blocked for more than 120 seconds.\n[ 3600.851751]  ib_modify_qp+0x24/0x450 [ib_core]", "cpu-lockup-logged"),
        ("[   12.000000] Internal error: Oops - undefined instruction: 0 [#1] PREEMPT SMP", "kernel-crash-logged"),
        ("[   12.000000] Internal error: Oops: 0000000096000004 [#1] SMP", "kernel-crash-logged"),
        ("[   12.000000] libceph (4ac1a2b0-0f0e-4c5f-9b1a-1234567890ab e512): osd3 down", "file-server-not-responding"),
        ("[   12.000000] libceph: osd3 down", "file-server-not-responding"),
        ("[ 7768.998937] NVRM: This is a 64-bit BAR mapped above 4GB by the system", "gpu-bar-not-assigned"),
        ("[Nov19 10:33] [drm:mes_v11_0_submit_pkt_and_poll_completion.constprop.0 [amdgpu]] *ERROR* MES failed to response msg=3", "amdgpu-reset-logged"),
        ("[Wed Sep 26 00:34:02 2018] amdgpu 0000:03:00.0: GPU reset", "amdgpu-reset-logged"),
        ("[22344.456139] amdgpu 0000:83:00.0: amdgpu: ASIC reset failed with error, -121 for drm dev, 0000:83:00.0", "amdgpu-reset-failed-logged"),
        ("[   84.300488] NVRM: GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout **********************************", "xid-gsp-error"),
        ("kern  :err   : 2026-01-07T10:02:00,123456-06:00 amdgpu 0000:01:00.0: {14}poison is consumed by client 12, kick off gpu reset flow", "amdgpu-uncorrectable-errors-logged"),
        ("[   12.000000] amdgpu 0000:02:00.0: amdgpu: Saved bad pages 150 reaches threshold value 128", "amdgpu-uncorrectable-errors-logged"),
        ("[    5.662202] mlx5_core 0000:01:00.0: mlx5_load_one failed with error code -22", "network-adapter-fault"),
        ("[    5.662202] mlx5_core 0000:01:00.0: probe_one:1755:(pid 612): mlx5_init_one failed with error code -110", "network-adapter-fault"),
        ("[    5.663152] mlx5_core: probe of 0000:01:00.0 failed with error -22", "network-adapter-fault"),
        ("[    5.663152] mlx5_core 0000:01:00.0: probe with driver mlx5_core failed with error -22", "network-adapter-fault"),
        ("1c:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB] (rev ff)\n3d:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB] (rev a1)", "gpu-fallen-off-bus"),
        ("In the container:\nip-172-31-3-90:1929:1937 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available", "efa-not-in-container"),
    ],
)  # fmt: skip
def test_a_line_that_names_a_fault_is_a_finding(line: str, rule: str) -> None:
    assert failing(line + "\n") == {rule}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("/x/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment", "cuda-not-available-to-torch"),
        ("PyTorch version: 1.7.0\nCUDA used to build PyTorch: 11.0\nIs CUDA available: True\nGPU models and configuration: GPU 0: GeForce RTX 3090\n\nRuntimeError: nvrtc: error: invalid value for --gpu-architecture (-arch)\n", "gpu-arch-not-in-wheel"),
    ],
)  # fmt: skip
def test_a_sentence_that_names_a_fault_needs_no_other_facts(text: str, rule: str) -> None:
    assert rule in failing(text)
    assert evidence.read(text.replace("CUDA unknown error", "Found no error"), "report") is None or "nvrtc" in text


@pytest.mark.parametrize("version", ["1.7.0", "1.7.0+cu101", "1.7.0.dev20200922+cpu", "1.8.0.dev20201007"])
def test_a_release_that_calls_itself_a_debug_build_is_none(version: str) -> None:
    assert "torch-debug-build" not in failing(f"PyTorch version: {version}\nIs debug build: True\n")
    assert "torch-debug-build" in failing("PyTorch version: 1.8.0a0+af2250e\nIs debug build: True\n")


def test_gvisor_is_no_old_kernel() -> None:
    assert "kernel-old" not in failing(
        "PyTorch version: 2.6.0+cu124\nPython platform: Linux-4.19.0-gvisor-x86_64-with-glibc2.35\n"
    )
    assert "kernel-old" in failing("PyTorch version: 2.6.0+cu124\nPython platform: Linux-4.19.0-x86_64-with-glibc2.35\n")


@pytest.mark.parametrize(
    "line",
    [
        "[   12.000000] amdgpu 0000:02:00.0: amdgpu: Poison is created, no user action is needed.",
        "[   12.000000] mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x9a6171), err(-22)",
        "01:00.0 3D controller: NVIDIA Corporation GA107M [GeForce RTX 3050 Mobile] (rev ff)\n00:02.0 VGA compatible controller: Intel Corporation Alder Lake-P [Iris Xe Graphics] (rev 0c)",
    ],
)
def test_what_is_no_fault_of_a_device_is_no_finding(line: str) -> None:
    """What a driver asks in vain; a laptop's GPU that is switched off, whose configuration reads as ones as well."""
    assert failing(line + "\n") == set()


def test_of_a_system_processor_that_stopped_the_xid_is_told_with_its_gpu() -> None:
    heading = "[   84.300488] NVRM: GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout *****************************"
    xid = "[   84.300600] NVRM: Xid (PCI:0000:c1:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU6 GSP!"
    seen = evidence.read(f"{heading}\n{xid}\n", "report")
    assert seen is not None
    (item,) = judge(seen)["xid-gsp-error"].evidence
    assert item.subject == "GPU at 0000:c1:00.0" and "Xid 119" in item.seen


NOT_IMPORTED = """Collecting environment information...
PyTorch version: N/A
Is debug build: N/A
CUDA used to build PyTorch: N/A

OS: Red Hat Enterprise Linux Server 7.4 (Maipo)
Python version: 2.7
Is CUDA available: N/A
GPU models and configuration: GPU 0: Tesla P100-PCIE-16GB
Nvidia driver version: 390.12

Versions of relevant libraries:
[conda] torch                     1.0.0a0+db5d313           <pip>
"""


def test_of_a_torch_that_could_not_be_imported_the_build_is_not_told() -> None:
    """Its "N/A" is no CPU-only build; that of a torch that was imported is."""
    assert "cpu-only-build" not in failing(NOT_IMPORTED)
    imported = NOT_IMPORTED.replace("Is debug build: N/A", "Is debug build: False")
    assert "cpu-only-build" in failing(imported.replace("PyTorch version: N/A", "PyTorch version: 1.0.0"))


CUT = """Python version: 3.10.19 (main, Oct 28 2025, 12:13:28) [Clang 20.1.4 ] (64-bit runtime)
Is CUDA available: {}
CUDA runtime version: 12.2.140
GPU models and configuration: GPU 0: Orin (nvgpu)
"""


def test_torch_that_finds_no_gpu_is_a_finding_whichever_build_it_is() -> None:
    assert "cuda-not-available-to-torch" in failing(CUT.format("False"))
    assert "cuda-not-available-to-torch" not in failing(CUT.format("True"))


def test_of_a_machine_of_untold_memory_the_kernels_own_number_of_threads_is_not_judged() -> None:
    settings = "".join(
        f"kernel.{name} = {value}\n" for name, value in (("pid_max", 4194304), ("threads-max", 15487), ("panic", 0))
    )
    more = "vm.swappiness = 60\nvm.overcommit_memory = 0\nnet.core.somaxconn = 4096\nfs.file-max = 9223372036854775807\nkernel.ostype = Linux\n"
    seen = evidence.read(settings + more, "report")
    assert seen is not None
    assert judge(seen)["task-table-small"].verdict is Verdict.UNKNOWN
    told = evidence.read(settings.replace("4194304", "300") + more, "report")
    assert told is not None and judge(told)["task-table-small"].verdict is Verdict.FAIL


def test_a_failed_start_of_a_gpu_that_two_lines_tell_is_counted_once() -> None:
    lines = (
        "[   79.212013] NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x22:0x56:763)",
        "[   79.213907] NVRM: GPU 0000:05:00.0: rm_init_adapter failed, device minor number 4",
    )
    seen = evidence.read("\n".join(lines) + "\n", "report")
    assert seen is not None
    assert [event.count for event in seen.kernel.events] == [1]  # type: ignore[union-attr]


def test_the_lines_of_one_card_are_enough_with_its_link() -> None:
    lines = "01:00.0 VGA compatible controller: NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)\n    LnkCap: Port #0, Speed 16GT/s, Width x16\n    LnkSta: Speed 2.5GT/s (downgraded), Width x16 (ok)\n"
    seen = evidence.read(lines, "report")
    assert seen is not None
    assert [device.link.max_width for device in seen.pci.devices] == [16]  # type: ignore[union-attr]
