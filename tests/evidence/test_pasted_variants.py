"""One report in the shapes that pasting gives it; and tables of systems that are no plain Linux servers."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import pytest

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence.nvidia.smi import parse_nvidia_smi
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, need

TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 555.85                 Driver Version: 555.85         CUDA Version: 12.5     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                  Driver-Model | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA L4                    {}   |   {} Off |                    0 |
| N/A   17C    P8             21W /   72W |       9MiB /  23034MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
"""
REPORT = """\
PyTorch version: 2.11.0+cu130
Is debug build: False
CUDA used to build PyTorch: 13.0
OS: Ubuntu 22.04.5 LTS (x86_64)
Python version: 3.10.12 (main, Nov  4 2024, 00:00:00) [GCC 11.4.0] (64-bit runtime)
Python platform: Linux-5.15.0-125-generic-x86_64-with-glibc2.35
Is CUDA available: False
GPU models and configuration:
GPU 0: NVIDIA L4
GPU 1: NVIDIA L4
Nvidia driver version: 550.127.05
[pip3] numpy==1.26.4
[pip3] torch==2.11.0
[pip3] torchvision==0.26.0
"""
SHAPES: dict[str, Callable[[str], str]] = {
    "quoted": lambda text: "".join(f"> {line}" for line in text.splitlines(keepends=True)),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "fenced": lambda text: f"Hello,\n\n```text\n{text}```\n\nany idea?\n",
    "indented": lambda text: "".join(f"    {line}" for line in text.splitlines(keepends=True)),
    "padded": lambda text: "".join(f"{line:<270}\n" for line in text.splitlines()),
    "escaped": escape,
    "linked": lambda text: text.replace("NVIDIA", "[NVIDIA](https://www.nvidia.com)"),
    "full-width": lambda text: text.replace(": ", "：", 20),
    "double-spaced": lambda text: text.replace("\n", "\n\n"),
    "no-break spaces": lambda text: text.replace("  ", "\u00a0\u00a0"),
    "quoted twice": lambda text: "".join(f"> > {line}" for line in text.splitlines(keepends=True)),
    "collected": lambda text: "".join(f"2025-01-01T00:00:00.0000000Z {line}" for line in text.splitlines(keepends=True)),
    "one line": lambda text: text.replace("\n", " "),
}


def failed(text: str) -> set[str]:
    seen = evidence.read(text, "issue.txt")
    assert seen is not None
    return {name for name, result in judge(seen).items() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)}


LOG = """\
[ 9.1] nvidia-nvlink: Nvlink Core is being initialized, major device number 234
[ 9.2] NVRM: The NVIDIA GeForce GTX 1080 GPU installed in this system is
       NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please
       NVRM:  visit http://www.nvidia.com/object/unix.html for more
[ 9.3] NVRM: No NVIDIA GPU found.
$ nvidia-smi
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
$ ibstat
CA 'mlx5_0'
\tPort 1:
\t\tState: Down
\t\tPhysical state: Polling
\t\tLink layer: InfiniBand
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    worker.start()
    self.pid = os.fork()
OSError: [Errno 12] Cannot allocate memory
"""
FOUND = (
    {"driver-too-old", "cuda-not-available-to-torch"},
    {"driver-ignores-gpu", "ib-port-down", "memory-available-low"},
)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_changes_no_finding(shape: str) -> None:
    assert failed(REPORT) == FOUND[0] and failed(LOG) == FOUND[1]
    assert failed(SHAPES[shape](REPORT)) == FOUND[0]
    if shape != "one line":
        assert failed(SHAPES[shape](LOG)) == FOUND[1]


@pytest.mark.parametrize(
    ("model", "address"), [("WDDM", "00000000:61:00.0"), ("TCC ", "00000000:61:00.0"), ("N/A ", "N/A              ")]
)
def test_windows_and_jetson_tables(model: str, address: str) -> None:
    found = parse_nvidia_smi(TABLE.format(model, address))
    assert isinstance(found, GpuFacts)
    (gpu,) = need(found.devices)
    assert gpu.name == "NVIDIA L4" and isinstance(gpu.persistence, Missing)
    assert isinstance(gpu.pci_address, Missing) is address.startswith("N/A")
    assert failed(TABLE.format(model, address)) == set()


SAID = [
    ("Failed to initialize NVML: Unknown Error", {"driver-tools-fail"}),
    ("Failed to initialize NVML: GPU access blocked by the operating system", {"driver-tools-fail"}),
    ("No devices were found", {"driver-tools-fail"}),
    ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure", {"driver-tools-fail"}),
    ("Failed to initialize NVML: Driver/library version mismatch", {"nvml-driver-library-mismatch"}),
    ("Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error", {"gpu-fallen-off-bus"}),
]


@pytest.mark.parametrize(("line", "rules"), SAID)
def test_what_nvidia_smi_says(line: str, rules: set[str]) -> None:
    assert failed(f"$ nvidia-smi\n{line}\n") == rules
    quoted = parse_nvidia_smi(f'Since the update I get "{line}" on all my nodes. Help!')
    assert isinstance(quoted, GpuFacts) and isinstance(quoted.devices, Missing)
    assert quoted.devices.detail == line


def test_the_kernels_log_says_more() -> None:
    silent = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    refused = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    assert failed(f"{silent}\n") == {"nvidia-driver-not-loaded"}
    assert failed(f"{silent}\n$ lsmod | grep nouveau\nnouveau              2306048  4\n") == {"nouveau-loaded"}
    assert failed(f"{silent}\n$ sudo modprobe nvidia\n{refused}\n") == {"module-signature-refused"}
    log = "[  9.1] NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)\n"
    assert failed(f"$ nvidia-smi\nNo devices were found\n$ dmesg\n{log}") == {"gpu-initialisation-failed"}


PORT = "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: {}\n\t\tPhysical state: {}\n\t\tRate: 400\n\t\tLink layer: {}\n"


@pytest.mark.parametrize(
    ("state", "physical", "layer", "rules"),
    [
        ("Down", "Polling", "InfiniBand", {"ib-port-down"}),
        ("Active", "LinkUp", "InfiniBand", set()),
        ("Initializing", "LinkUp", "InfiniBand", {"ib-subnet-manager-missing"}),
        ("Down", "Disabled", "Ethernet", set()),
    ],
)
def test_a_port_that_is_pasted_alone(state: str, physical: str, layer: str, rules: set[str]) -> None:
    assert failed("$ ibstat\n" + PORT.format(state, physical, layer)) == rules


AMD = """\
PyTorch version: {}
CUDA used to build PyTorch: N/A
ROCM used to build PyTorch: 6.4.43484
Is CUDA available: True
GPU models and configuration: AMD Radeon ({}:xnack-)
Nvidia driver version: Could not collect
HIP runtime version: 6.4.43484
"""


@pytest.mark.parametrize(
    ("torch", "gfx", "rules"),
    [
        ("2.9.0+rocm6.4", "gfx1010", {"rocm-arch-not-in-wheel"}),
        ("2.9.0+rocm6.4", "gfx1100", set()),
        ("2.9.0a0+git1234567", "gfx1010", set()),
        ("2.10.0+rocm7.10.0a20251120", "gfx1010", set()),
    ],
)
def test_amd_gpus_and_the_wheels_code(torch: str, gfx: str, rules: set[str]) -> None:
    assert failed(AMD.format(torch, gfx)) == rules


def test_a_cuda_build_of_a_package_beside_rocm() -> None:
    line = "UserWarning: flash_attn was requested, but nvcc was not found.  Are you sure your environment has nvcc available?"
    assert failed(f"torch.__version__  = 2.9.0+rocm6.4\n{line}\n") == {"extension-made-for-cuda"}
    assert failed(f"torch.__version__  = 2.9.0+cu128\n{line}\n") == {"cuda-toolkit-missing"}


def shown(text: str) -> str:
    """What the first failing evidence says, with what is wanted and the fix that it has of its own."""
    seen = evidence.read(text, "issue.txt")
    assert seen is not None
    found = next(result for result in judge(seen).values() if result.verdict is Verdict.FAIL).evidence[0]
    return " ".join((found.seen, found.wanted, *(action.text for action in found.fix if isinstance(action, Advice))))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The NVIDIA driver on your system is too old (found version 11040). Please update", "torch 2.7.1 from the cu118 index"),
        ("The NVIDIA driver on your system is too old (found version 12040). Please update", "CUDA 13: >= 580.65.06"),
        ("The NVIDIA driver on your system is too old (found version 9010). Please update", "CUDA 12: >= 525.60.13"),
        ("torch==2.5.1\nThe NVIDIA driver on your system is too old (found version 11040).", "driver >= 525.60.13"),
        ("/x/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommShrink", "older NCCL than it was built with"),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "wsl --update"),
    ],
)
def test_what_to_do_next_is_said(text: str, words: str) -> None:
    assert words in shown(text)
