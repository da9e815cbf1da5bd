"""Reports of every known layout, all contents invented: what the tests of fidelity read twice.

Layouts are those of torch/utils/collect_env.py (v1.0 to v2.9), vllm/collect_env.py, sglang/check_env.py, mmengine, detectron2, the env
commands of transformers, accelerate and diffusers, DeepSpeed's ds_report, util-linux' lscpu, and nvidia-smi from R384 to R595.
"""

from __future__ import annotations

from layouts_nvidia_smi import MATRIX, PLAIN_MATRIX, SMI_384, SMI_450, SMI_535, SMI_570, SMI_LIST

LSCPU = """\
Architecture:                       x86_64
CPU op-mode(s):                     32-bit, 64-bit
Address sizes:                      46 bits physical, 57 bits virtual
Byte Order:                         Little Endian
CPU(s):                             128
On-line CPU(s) list:                0-127
Vendor ID:                          GenuineIntel
Model name:                         Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz
CPU family:                         6
Thread(s) per core:                 2
Core(s) per socket:                 32
Socket(s):                          2
Hypervisor vendor:                  KVM
NUMA node(s):                       2
NUMA node0 CPU(s):                  0-31,64-95
NUMA node1 CPU(s):                  32-63,96-127
Flags:                              fpu vme sse4_1 sse4_2 avx f16c avx2 avx512f
"""
PIP = """\
[pip3] numpy==1.26.4
[pip3] nvidia-cudnn-cu12==9.1.0.70
[pip3] nvidia-nccl-cu12==2.21.5
[pip3] torch==2.5.1
[pip3] triton==3.1.0
"""
TORCH_1_0 = """\
PyTorch version: 1.1.0
Is debug build: No
CUDA used to build PyTorch: 10.0.130

OS: Ubuntu 16.04.6 LTS
GCC version: (Ubuntu 5.4.0-6ubuntu1~16.04.12) 5.4.0 20160609
CMake version: version 3.5.1

Python version: 3.7
Is CUDA available: Yes
CUDA runtime version: 10.0.130
GPU models and configuration:
GPU 0: GeForce GTX 1080 Ti
GPU 1: TITAN V

Nvidia driver version: 410.104
cuDNN version: Could not collect

Versions of relevant libraries:
[pip] numpy==1.16.4
[pip3] torch==1.1.0
[conda] blas                      1.0                         mkl
[conda] pytorch                   1.1.0           py3.7_cuda10.0.130_cudnn7.5.1_0    pytorch
"""
TORCH_1_8 = """\
Collecting environment information...
PyTorch version: 1.8.1+cu111
Is debug build: False
CUDA used to build PyTorch: 11.1
ROCM used to build PyTorch: N/A

OS: CentOS Linux 7 (Core) (x86_64)
GCC version: (GCC) 7.3.1 20180303 (Red Hat 7.3.1-5)
Clang version: Could not collect
CMake version: version 3.14.6

Python version: 3.8 (64-bit runtime)
Is CUDA available: True
CUDA runtime version: Could not collect
GPU models and configuration: GPU 0: A100-SXM4-40GB
Nvidia driver version: 460.73.01
cuDNN version: Could not collect
HIP runtime version: N/A
MIOpen runtime version: N/A

Versions of relevant libraries:
[pip3] numpy==1.19.5
[pip3] torch==1.8.1+cu111
[pip3] torchvision==0.9.1+cu111
[conda] Could not collect
"""
TORCH_2 = f"""\
Collecting environment information...
PyTorch version: 2.5.1+cu124
Is debug build: False
CUDA used to build PyTorch: 12.4
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.4 LTS (x86_64)
GCC version: (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0
Clang version: Could not collect
CMake version: version 3.30.4
Libc version: glibc-2.35

Python version: 3.11.0rc1 (main, Aug 12 2022, 10:02:14) [GCC 11.2.0] (64-bit runtime)
Python platform: Linux-5.15.0-124-generic-x86_64-with-glibc2.35
Is CUDA available: True
CUDA runtime version: 12.4.131
CUDA_MODULE_LOADING set to: LAZY
GPU models and configuration:
GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA A100-SXM4-80GB

Nvidia driver version: 550.90.07
cuDNN version: Probably one of the following:
/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0
HIP runtime version: N/A
MIOpen runtime version: N/A
Is XNNPACK available: True

CPU:
{LSCPU}
Versions of relevant libraries:
{PIP}[conda] _anaconda_depends         2024.10             py312_mkl_0
[conda] numpy                     1.26.4                   pypi_0    pypi
"""
ROCM = (
    TORCH_2.replace("2.5.1+cu124", "2.8.0+rocm6.4")
    .replace("CUDA used to build PyTorch: 12.4", "CUDA used to build PyTorch: N/A")
    .replace("ROCM used to build PyTorch: N/A", "ROCM used to build PyTorch: 6.4.43482-0f2d60242")
    .replace(
        "configuration:\nGPU 0: NVIDIA A100-SXM4-80GB\nGPU 1: NVIDIA A100-SXM4-80GB\n",
        "configuration: AMD Instinct MI300X (gfx942:sramecc+:xnack-)",
    )
    .replace("550.90.07", "Could not collect")
    .replace("HIP runtime version: N/A", "HIP runtime version: 6.4.43482")
)
VLLM = f"""\
{TORCH_2}ROCM Version: Could not collect
Neuron SDK Version: N/A
vLLM Version: 0.6.4.post1
vLLM Build Flags:
CUDA Archs: Not Set; ROCm: Disabled; Neuron: Disabled
GPU Topology:
{MATRIX.lstrip()}
LD_LIBRARY_PATH=/usr/local/cuda/lib64
CUDA_MODULE_LOADING=LAZY
"""
VLLM_ALIGNED = f"""\
Collecting environment information...
==============================
        System Info
==============================
OS                           : Ubuntu 24.04.2 LTS (x86_64)
GCC version                  : (Ubuntu 13.3.0-6ubuntu2~24.04) 13.3.0
Clang version                : Could not collect
CMake version                : version 3.31.6
Libc version                 : glibc-2.39

==============================
       PyTorch Info
==============================
PyTorch version              : 2.7.1+cu126
Is debug build               : False
CUDA used to build PyTorch   : 12.6
ROCM used to build PyTorch   : N/A

==============================
      Python Environment
==============================
Python version               : 3.12.3 (main, Feb  4 2025, 14:48:35) [GCC 13.3.0] (64-bit runtime)
Python platform              : Linux-6.8.0-60-generic-x86_64-with-glibc2.39

==============================
       CUDA / GPU Info
==============================
Is CUDA available            : True
CUDA runtime version         : 12.6.85
CUDA_MODULE_LOADING set to   : LAZY
GPU models and configuration :
GPU 0: NVIDIA H100 80GB HBM3
GPU 1: NVIDIA H100 80GB HBM3

Nvidia driver version        : 570.124.06
cuDNN version                : Could not collect
HIP runtime version          : N/A
MIOpen runtime version       : N/A
Is XNNPACK available         : True

==============================
          CPU Info
==============================
{LSCPU}
==============================
Versions of relevant libraries
==============================
{PIP}[conda] Could not collect

==============================
         vLLM Info
==============================
ROCM Version                 : Could not collect
vLLM Version                 : 0.9.1
GPU Topology:
  {MATRIX}
==============================
     Environment Variables
==============================
NCCL_DEBUG=INFO
CUDA_MODULE_LOADING=LAZY
"""
SGLANG = f"""\
Python: 3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0]
CUDA available: True
GPU 0,1: NVIDIA H20
GPU 0,1 Compute Capability: 9.0
CUDA_HOME: /usr/local/cuda
NVCC: Cuda compilation tools, release 12.4, V12.4.131
CUDA Driver Version: 535.161.08
PyTorch: 2.5.1+cu124
sglang: 0.4.3.post2
flashinfer: 0.2.1.post2+cu124torch2.5
triton: 3.1.0
transformers: 4.48.3
numpy: 1.26.4
vllm: 0.6.4.post1
NVIDIA Topology:
{MATRIX}
Hypervisor vendor:: KVM
ulimit soft: 1048576
"""
SGLANG_EARLY = SGLANG.replace("GPU 0,1 Compute Capability: 9.0\n", "").replace("Hypervisor vendor:: KVM\n", "")
SGLANG_MIXED = SGLANG.replace(
    "GPU 0,1: NVIDIA H20\nGPU 0,1 Comp",
    "GPU 0: NVIDIA A100 80GB PCIe\nGPU 1: NVIDIA H20\nGPU 0 Compute Capability: 8.0\nGPU 1 Comp",
)
SGLANG_ROCM = """\
Python: 3.12.8 (main, Dec  4 2024, 08:54:12) [GCC 11.4.0]
ROCM available: True
GPU 0,1: AMD Instinct MI300X
GPU 0,1 Compute Capability: 9.4
ROCM_HOME: /opt/rocm
HIPCC: HIP version: 6.3.42131-fa1d09cbd
ROCM Driver Version: 6.10.5
PyTorch: 2.6.0+rocm6.3
sglang: 0.4.5
AMD Topology:

Hypervisor vendor: KVM
ulimit soft: 1048576
"""
SGLANG_LOGGED = "".join(f"INFO 2025-04-06T03:02:45.{843487262 + at}Z {line}\n" for at, line in enumerate(SGLANG.split("\n")))
SGLANG_FILLED = SGLANG.replace("Compute Capability: 9.0\n", "Compute Capability: 9.0" + " " * 90)
MATRIX_GLUED = VLLM.replace("PXB\tSYS\t0-31", "PXBSYS\t0-31").replace("NIC0\tNIC1\tCPU", "NIC0NIC1\tCPU")
COLOURS_LOST = VLLM.replace("GPU0\tGPU1\tNIC0", "\ufffd[4mGPU0\tGPU1\tNIC0").replace("GPU NUMA ID", "GPU NUMA ID\ufffd[0m")
MMENGINE = """\
sys.platform: linux
Python: 3.8.18 (default, Sep 11 2023, 13:40:15) [GCC 11.2.0]
CUDA available: True
MUSA available: False
numpy_random_seed: 2147483648
GPU 0,1: NVIDIA GeForce RTX 3090
CUDA_HOME: /usr/local/cuda
NVCC: Cuda compilation tools, release 11.3, V11.3.109
GCC: gcc (Ubuntu 9.4.0-1ubuntu1~20.04.1) 9.4.0
PyTorch: 1.11.0+cu113
PyTorch compiling details: PyTorch built with:
  - GCC 7.3
  - CUDA Runtime 11.3
TorchVision: 0.12.0+cu113
OpenCV: 4.8.1
MMEngine: 0.9.0
"""
DETECTRON2 = """\
----------------------  -------------------------------------------------
sys.platform            linux
Python                  3.8.10 (default, Nov 26 2021, 20:14:08) [GCC 9.3.0]
numpy                   1.22.4
detectron2              0.6 @/home/user/detectron2/detectron2
PyTorch                 1.10.1+cu113 @/home/user/venv/lib/python3.8/site-packages/torch
PyTorch debug build     False
GPU available           Yes
GPU 0,1                 NVIDIA A100-SXM4-40GB (arch=8.0)
Driver version          470.82.01
CUDA_HOME               /usr/local/cuda
torchvision             0.11.2+cu113 @/home/user/venv/lib/python3.8/site-packages/torchvision
----------------------  -------------------------------------------------
PyTorch built with:
  - CUDA Runtime 11.3
"""
TRANSFORMERS = """\
- `transformers` version: 4.44.2
- Platform: Linux-5.15.0-113-generic-x86_64-with-glibc2.35
- Python version: 3.10.12
- Huggingface_hub version: 0.24.6
- Accelerate version: 0.34.0
- PyTorch version (GPU?): 2.4.0+cu121 (True)
- Tensorflow version (GPU?): not installed (NA)
- Using distributed or parallel set-up in script?: No
- Using GPU in script?: Yes
- GPU type: NVIDIA L40S
"""
ACCELERATE = """\
- `Accelerate` version: 0.33.0
- Platform: Linux-6.8.0-1015-aws-x86_64-with-glibc2.35
- `accelerate` bash location: /home/user/venv/bin/accelerate
- Python version: 3.11.9
- Numpy version: 1.26.4
- PyTorch version (GPU?): 2.4.1+cu124 (True)
- PyTorch XPU available: False
- System RAM: 124.30 GB
- GPU type: NVIDIA A10G
- `Accelerate` default config:
        Not found
"""
ACCELERATE_1 = ACCELERATE.replace(
    "PyTorch version (GPU?): 2.4.1+cu124 (True)", "PyTorch version: 2.6.0+cu124\n- PyTorch accelerator: CUDA"
)
DIFFUSERS = """\
- 🤗 Diffusers version: 0.30.0
- Platform: Linux-5.4.0-166-generic-x86_64-with-glibc2.31
- Running on Google Colab?: No
- Python version: 3.9.19
- PyTorch version (GPU?): 2.3.1+cu118 (False)
- Huggingface_hub version: 0.24.2
- Accelerator: NVIDIA GeForce RTX 4090, 24564 MiB
- Using GPU in script?: <fill in>
"""
DS_REPORT = """\
--------------------------------------------------
DeepSpeed C++/CUDA extension op report
--------------------------------------------------
async_io ............... [NO] ....... [OKAY]
fused_adam ............. [NO] ....... [OKAY]
--------------------------------------------------
DeepSpeed general environment info:
torch install path ............... ['/opt/venv/lib/python3.12/site-packages/torch']
torch version .................... 2.3.0+cu121
deepspeed install path ........... ['/opt/venv/lib/python3.12/site-packages/deepspeed']
deepspeed info ................... 0.15.5, unknown, unknown
torch cuda version ............... 12.1
torch hip version ................ None
nvcc version ..................... 12.0
deepspeed wheel compiled w. ...... torch 2.3, cuda 12.1
shared memory (/dev/shm) size .... 125.77 GB
"""

_TORCH = {"torch.version", "torch.cuda", "python.version", "cuda.available", "os.name", "driver.version", "gpu.names", "packages"}
_NOW = _TORCH | {
    "kernel",
    "glibc",
    "nvcc",
    "cpu.model",
    "cpu.online",
    "cpu.sockets",
    "cpu.cores",
    "cpu.smt",
    "hypervisor",
    "numa.nodes",
}
_MATRIX = {"matrix.gpus", "matrix.nvlinks", "matrix.nodes"}
_SGLANG = {"torch.version", "python.version", "cuda.available", "gpu.names", "nvcc", "driver.version"}
_TABLE = {"driver.version", "table.addresses", "table.memory_mib", "table.names"}
LAYOUTS: dict[str, tuple[str, set[str]]] = {
    "torch 1.0": (TORCH_1_0, _TORCH | {"nvcc"}),
    "torch 1.8": (TORCH_1_8, _TORCH),
    "torch 2": (TORCH_2, _NOW),
    "torch 2, ROCm": (ROCM, (_NOW | {"torch.hip"}) - {"torch.cuda", "driver.version"}),
    "torch 2, beside a matrix": (TORCH_2 + "\n$ nvidia-smi topo -m\n" + PLAIN_MATRIX, _NOW | {"matrix.gpus", "matrix.nodes"}),
    "vLLM": (VLLM, _NOW | _MATRIX),
    "vLLM, aligned": (VLLM_ALIGNED, _NOW | _MATRIX),
    "vLLM, cells glued": (MATRIX_GLUED, _NOW | {"matrix.gpus"}),
    "vLLM, colours without their escape": (COLOURS_LOST, _NOW | _MATRIX),
    "vLLM, quoted": ("".join(f"> {line}\n" for line in VLLM.split("\n")), _NOW | _MATRIX),
    "sglang": (SGLANG, _SGLANG | _MATRIX | {"gpu.capability", "hypervisor"}),
    "sglang, early": (SGLANG_EARLY, _SGLANG | _MATRIX),
    "sglang, two kinds of GPU": (SGLANG_MIXED, _SGLANG | _MATRIX | {"gpu.capability"}),
    "sglang, ROCm": (
        SGLANG_ROCM,
        {"torch.version", "torch.hip", "python.version", "cuda.available", "gpu.names", "gpu.capability", "hypervisor"},
    ),
    "sglang, out of a console": (SGLANG_LOGGED, _SGLANG | _MATRIX | {"gpu.capability"}),
    "sglang, line ends lost": (SGLANG_FILLED, _SGLANG | _MATRIX | {"gpu.capability"}),
    "mmengine": (MMENGINE, {"torch.version", "python.version", "cuda.available", "gpu.names", "nvcc"}),
    "detectron2": (DETECTRON2, {"torch.version", "python.version", "cuda.available", "gpu.names", "driver.version"}),
    "transformers": (TRANSFORMERS, {"torch.version", "python.version", "cuda.available", "kernel", "gpu.names"}),
    "accelerate": (ACCELERATE, {"torch.version", "python.version", "cuda.available", "kernel", "gpu.names"}),
    "accelerate 1": (ACCELERATE_1, {"torch.version", "python.version", "kernel", "gpu.names"}),
    "diffusers": (DIFFUSERS, {"torch.version", "python.version", "cuda.available", "kernel", "gpu.names"}),
    "ds_report": (DS_REPORT, {"torch.version", "torch.cuda", "nvcc", "shm.gib"}),
    "lscpu": (LSCPU, {"cpu.model", "cpu.online", "cpu.sockets", "cpu.cores", "cpu.smt", "hypervisor", "numa.nodes"}),
    "nvidia-smi R384": (SMI_384, _TABLE),
    "nvidia-smi R450": (SMI_450, _TABLE | {"driver.cuda"}),
    "nvidia-smi R535": (SMI_535, _TABLE | {"driver.cuda"}),
    "nvidia-smi R570": (SMI_570, _TABLE | {"driver.cuda"}),
    "nvidia-smi -L": (SMI_LIST, {"gpu.names"}),
    "nvidia-smi topo": (MATRIX, _MATRIX),
}
"""Text, and the fields that the second reading must find in it."""
