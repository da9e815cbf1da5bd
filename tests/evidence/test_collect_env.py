"""Reports as people paste them. The layouts follow torch/utils/collect_env.py (1.0 to 2.15) and vLLM's collect_env.py; the contents are invented."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence import lscpu, report_lines
from torchtune_sys.model.rule import Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, absent
from torchtune_sys.rules.can_train import Device, ability
from torchtune_sys.rules.gates import torch_build

TORCH_2 = """\
Collecting environment information...
PyTorch version: 2.5.1+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.3 LTS (x86_64)
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Clang version: Could not collect
CMake version: version 3.22.1
Libc version: glibc-2.35

Python version: 3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)
Python platform: Linux-5.15.0-119-generic-x86_64-with-glibc2.35
Is CUDA available: True
CUDA runtime version: 12.1.105
CUDA_MODULE_LOADING set to: LAZY
GPU models and configuration:
GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA A100-SXM4-80GB

Nvidia driver version: 535.104.05
cuDNN version: Probably one of the following:
/usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.7
HIP runtime version: N/A
MIOpen runtime version: N/A
Is XNNPACK available: True

CPU:
Architecture:                       x86_64
CPU(s):                             64
On-line CPU(s) list:                0-63
Model name:                         Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz
Thread(s) per core:                 1
Core(s) per socket:                 32
Socket(s):                          2
Flags:                              fpu vme sse4_2 avx avx2 avx512f
NUMA node0 CPU(s):                  0-31

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] nvidia-cublas-cu12==12.4.5.8
[pip3] nvidia-cudnn-cu12==9.1.0.70
[pip3] nvidia-nccl-cu12==2.21.5
[pip3] torch==2.5.1
[pip3] torchvision==0.20.1
[pip3] triton==3.1.0
[conda] numpy                     1.26.4                   pypi_0    pypi
[conda] mkl                       2023.1.0         h213fc3f_46344
"""
TORCH_1 = """\
Collecting environment information...
PyTorch version: 1.7.1
Is debug build: False
CUDA used to build PyTorch: 10.2
ROCM used to build PyTorch: N/A

OS: Ubuntu 18.04.5 LTS (x86_64)
GCC version: (Ubuntu 7.5.0-3ubuntu1~18.04) 7.5.0

Python version: 3.8 (64-bit runtime)
Is CUDA available: True
CUDA runtime version: 10.2.89
GPU models and configuration: GPU 0: GeForce RTX 2080 Ti
Nvidia driver version: 440.64.00
cuDNN version: /usr/lib/x86_64-linux-gnu/libcudnn.so.7.6.5

Versions of relevant libraries:
[pip3] numpy==1.19.2
[pip3] torch==1.7.1
[pip3] torchvision==0.8.2
[conda] Could not collect
"""
VLLM = """\
==============================
        System Info
==============================
OS                           : Ubuntu 24.04.1 LTS (x86_64)
Libc version                 : glibc-2.39

==============================
       PyTorch Info
==============================
PyTorch version              : 2.11.0+cu130
Is debug build               : False
CUDA used to build PyTorch   : 13.0
ROCM used to build PyTorch   : N/A

==============================
      Python Environment
==============================
Python version               : 3.12.3 (main, Aug 14 2025, 17:47:21) [GCC 13.3.0] (64-bit runtime)
Python platform              : Linux-6.8.0-45-generic-x86_64-with-glibc2.39

==============================
       CUDA / GPU Info
==============================
Is CUDA available            : False
CUDA runtime version         : Could not collect
CUDA_MODULE_LOADING set to   :
GPU models and configuration :
GPU 0: NVIDIA H100 80GB HBM3
Nvidia driver version        : 570.86.10

==============================
Versions of relevant libraries
==============================
[pip3] numpy==2.1.3
[pip3] torch==2.11.0

==============================
     Environment Variables
==============================
NVIDIA_VISIBLE_DEVICES=all
LD_LIBRARY_PATH=/usr/local/nvidia/lib64
HF_TOKEN=hf_abcdefghijk
CUDA_MODULE_LOADING=LAZY
"""


def read(text: str) -> Snapshot:
    seen = evidence.read(text, "report.txt")
    assert seen is not None
    return seen


def failing(text: str) -> set[str]:
    return {rule_id for rule_id, result in judge(read(text)).items() if result.verdict is Verdict.FAIL}


def test_every_fact_of_the_report_is_taken() -> None:
    seen = read(TORCH_2)
    assert not isinstance(seen.python, Missing) and not isinstance(seen.gpu, Missing)
    assert not isinstance(seen.system, Missing) and not isinstance(seen.cpu, Missing)
    torch = seen.python.torch
    assert not isinstance(torch, Missing)
    assert (torch.version, torch.cuda, torch.nccl, torch.cudnn, torch.debug) == (
        "2.5.1+cu124",
        "12.4",
        "2.21.5",
        "9.1.0.70",
        False,
    )
    assert absent(torch.hip)
    assert (seen.python.version, seen.python.machine, seen.python.glibc) == ("3.10.12", "x86_64", "2.35")
    assert seen.python.nvcc == "12.1.105"
    assert not isinstance(seen.python.live, Missing) and seen.python.live.cuda_available is True
    assert not isinstance(seen.gpu.devices, Missing)
    assert [gpu.name for gpu in seen.gpu.devices] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert seen.gpu.driver_version == "535.104.05"
    assert seen.system.kernel == "5.15.0-119-generic"
    assert not isinstance(seen.system.os, Missing)
    assert (seen.system.os.id, seen.system.os.version) == ("ubuntu", "22.04")
    assert str(seen.cpu.online) == "0-63"
    assert (seen.cpu.sockets, seen.cpu.cores, seen.cpu.smt) == (2, 64, False)
    assert isinstance(seen.memory, Missing) and seen.memory.why is Why.NOT_RECORDED


@pytest.mark.parametrize("text", [TORCH_2, TORCH_1])
def test_a_sound_report_gives_no_error(text: str) -> None:
    bad = [r.rule.id for r in judge(read(text)).values() if r.verdict is Verdict.FAIL and r.rule.severity is Severity.ERROR]
    assert bad == []


def test_old_layout() -> None:
    seen = read(TORCH_1)
    assert not isinstance(seen.python, Missing) and not isinstance(seen.gpu, Missing)
    assert seen.python.version == "3.8"
    assert not isinstance(seen.gpu.devices, Missing) and len(seen.gpu.devices) == 1


def test_padded_layout_with_banners() -> None:
    seen = read(VLLM)
    assert not isinstance(seen.session, Missing) and not isinstance(seen.session.env, Missing)
    assert seen.session.env["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert "HF_TOKEN" not in seen.session.env
    assert {"driver-too-old", "cuda-not-available-to-torch"} <= failing(VLLM)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
        lambda text: "```\n" + text + "```\n",
        lambda text: "\n".join(f"    {line}" for line in text.split("\n")),
        lambda text: "\n".join(f"2026-11-20 10:00:01,123 [INFO] {line}" for line in text.split("\n")),
        lambda text: "\n".join(f"trainer-1  | {line}" for line in text.split("\n")),
        lambda text: "\x1b[32m" + text.replace("\n", "\x1b[0m\n\x1b[1;31m"),
        lambda text: "\ufeff" + text,
        lambda text: "I get this error, please help!\n\n" + text + "\nThanks: it worked with torch: 2.4\n",
    ],
)
def test_what_people_put_around_a_report_does_not_matter(spoil) -> None:  # type: ignore[no-untyped-def]
    seen, plain = read(spoil(TORCH_2)), read(TORCH_2)
    assert not isinstance(seen.python, Missing) and not isinstance(plain.python, Missing)
    assert seen.python.torch == plain.python.torch
    assert seen.python.distributions == plain.python.distributions
    assert seen.gpu == plain.gpu


def test_both_reports_in_one_paste() -> None:
    smi = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n"
    seen = read(TORCH_2.replace("Nvidia driver version: 535.104.05", "Nvidia driver version: Could not collect") + smi)
    assert seen.origin == "report (collect_env, nvidia-smi)"
    assert not isinstance(seen.gpu, Missing) and seen.gpu.error


def test_amd_gpus_get_no_nvidia_findings() -> None:
    text = TORCH_2.replace("2.5.1+cu124", "2.5.1+rocm6.2").replace("build PyTorch: 12.4", "build PyTorch: N/A", 1)
    text = text.replace("ROCM used to build PyTorch: N/A", "ROCM used to build PyTorch: 6.2.41133-dd7f95766")
    text = text.replace(
        "GPU 0: NVIDIA A100-SXM4-80GB\nGPU 1: NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X (gfx942:sramecc+:xnack-)"
    )
    text = text.replace("535.104.05", "Could not collect").replace("torchvision==0.20.1", "torchvision==0.20.1+rocm6.2")
    assert failing(text) == set()


def test_flags_that_a_terminal_broke_are_not_judged() -> None:
    seen = read(TORCH_2.replace("avx avx2 avx512f", "av\nx avx2 avx512f"))
    assert not isinstance(seen.cpu, Missing) and isinstance(seen.cpu.flags, Missing)


def test_pip_list_alone_names_the_build() -> None:
    assert "driver-too-old" in failing("Driver Version: 570.86.10     CUDA Version: 12.8\ntorch 2.11.0\n")
    torch = torch_build(read("Package Version\n------- -------\ntorch   2.9.1+rocm6.4\n"))
    assert torch.hip == "6.4" and isinstance(torch.cuda, Missing)


@pytest.mark.parametrize(
    ("line", "rule_id"),
    [
        (
            "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11000). Please update",
            "driver-too-old",
        ),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver",
            "driver-too-old",
        ),
        ("ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by x.so)", "glibc-too-old"),
        (
            "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
            "nvjitlink-shadowed-by-ld-library-path",
        ),
        (
            "NVIDIA X with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
            "gpu-arch-not-in-wheel",
        ),
        ("RuntimeError: the provided PTX was compiled with an unsupported toolchain.", "ptx-newer-than-driver"),
        ("Error 804: forward compatibility was attempted on non supported HW", "forward-compat-unsupported-gpu"),
    ],
)
def test_a_complaint_alone_is_evidence(line: str, rule_id: str) -> None:
    assert rule_id in failing(line)


@pytest.mark.parametrize(
    "text", ["", "hello", "\x00\xff", "a: b\n" * 1000, "Traceback (most recent call last):\nKeyError: 'x'\n"]
)
def test_other_text_is_not_taken_for_a_report(text: str) -> None:
    assert evidence.read(text, "x") is None


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    evidence.read(text, "x")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from((TORCH_2, TORCH_1, VLLM)), st.integers(0, 2000), st.integers(0, 200), st.text(max_size=30))
def test_a_damaged_report_is_survived_and_crashes_no_rule(text: str, place: int, cut: int, junk: str) -> None:
    seen = evidence.read(text[:place] + junk + text[place + cut :], "x")
    if seen is not None:
        assert not [r.note for r in judge(seen).values() if r.verdict is Verdict.CRASHED]


def test_a_huge_paste_is_cut() -> None:
    seen = evidence.read(TORCH_2 + "x: y\n" * 400_000, "x")
    assert seen is not None and seen.python == evidence.read(TORCH_2, "x").python  # type: ignore[union-attr]


def test_one_endless_line() -> None:
    assert evidence.read("PyTorch version: 2.5.1\n" + "GPU " * 500_000, "x") is not None


def test_values_that_are_no_numbers() -> None:
    lines = report_lines.parse_lines("PyTorch version: x\nCPU(s): 999999999999\nSocket(s): -\nOn-line CPU(s) list: 9-1,,x\n")
    facts = lscpu.cpu_facts(lines)
    assert not isinstance(facts, Missing)
    assert isinstance(facts.online, Missing) and isinstance(facts.sockets, Missing)


def test_what_a_report_does_not_tell_is_not_told_to_be_absent() -> None:
    """Of a Triton that is listed it was said "not there on this host: no Triton"."""
    found = judge(read(TORCH_2))
    wrong = {
        rule_id: item.why
        for rule_id, result in found.items()
        if result.verdict is Verdict.UNKNOWN
        for item in result.evidence
        if item.why is not None and item.why.why is Why.ABSENT
    }
    why = found["libcuda-not-linkable"].why_unknown
    assert not wrong and why is not None and why.why is Why.NOT_RECORDED


@pytest.mark.parametrize(
    ("lines", "kind"), [("XPU used to build PyTorch: 20250101\nIs XPU available: True\n", "20250101"), ("", "xpu")]
)
def test_a_build_for_intel_gpus_is_not_told_to_train_on_the_cpu_only(lines: str, kind: str) -> None:
    text = TORCH_2.replace("2.5.1+cu124", "2.8.0+xpu").replace(
        "CUDA used to build PyTorch: 12.4", "CUDA used to build PyTorch: None"
    )
    text = text.replace("Is CUDA available: True", f"Is CUDA available: False\n{lines}").replace(
        "torch==2.5.1\n", "torch==2.8.0+xpu\n"
    )
    for gone in ("GPU 0: NVIDIA A100-SXM4-80GB\n", "GPU 1: NVIDIA A100-SXM4-80GB\n", "Nvidia driver version: 535.104.05\n"):
        text = text.replace(gone, "")
    seen = read(text)
    assert not isinstance(seen.python, Missing) and not isinstance(seen.python.torch, Missing)
    assert seen.python.torch.xpu == kind and ability(seen).device is Device.UNKNOWN
