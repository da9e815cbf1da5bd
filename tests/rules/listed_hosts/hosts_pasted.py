"""Hosts of hosts.csv that are texts which were pasted: the key ``paste``."""

from __future__ import annotations

from hosts_table import HOSTS

_TRACE = """>>> import flash_attn
Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
  File "/usr/local/lib/python3.10/site-packages/flash_attn/__init__.py", line 3, in <module>
    from flash_attn.flash_attn_interface import (
  File "/usr/local/lib/python3.10/site-packages/flash_attn/flash_attn_interface.py", line 15, in <module>
    import flash_attn_2_cuda as flash_attn_gpu
"""
_ERROR = (
    "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found "
    "(required by /usr/local/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)\n"
)
_REPORT = """PyTorch version: 2.7.1+cu126
Is debug build: False
CUDA used to build PyTorch: 12.6
OS: Rocky Linux 8.10 (Green Obsidian) (x86_64)
Libc version: glibc-2.28
Python version: 3.10.18 (main, Jun  3 2025, 18:12:41) [GCC 8.5.0] (64-bit runtime)
Is CUDA available: True
GPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB
Nvidia driver version: 560.35.05
Versions of relevant libraries:
[pip3] numpy==2.1.2
[pip3] torch==2.7.1+cu126
"""
HOSTS[213] = (lambda: {"paste": _TRACE + _ERROR + "\n" + _REPORT}, lambda: {"paste": _REPORT})
_SMI = """Wed May 15 21:49:41 2024
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 545.46                 Driver Version: 546.80       CUDA Version: {cuda:<5}    |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
|   0  NVIDIA GeForce RTX 3060 ...    On  | 00000000:01:00.0  On |                  N/A |
| N/A   54C    P8              16W /  80W |    816MiB /  6144MiB |      3%      Default |
|                                         |                      |                  N/A |
+-----------------------------------------+----------------------+----------------------+
"""
HOSTS[237] = (lambda: {"paste": _SMI.format(cuda="ERR!")}, lambda: {"paste": _SMI.format(cuda="12.3")})
_QUERY = """==============NVSMI LOG==============

Timestamp                                 : Wed Oct 25 11:24:08 2023
Driver Version                            : 535.104.12
CUDA Version                              : 12.2

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Product Architecture                  : Hopper
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : {hot}
            HW Thermal Slowdown           : {hot}
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
        Display Clock Setting             : Not Active
    Utilization
        Gpu                               : 99 %
        Memory                            : 41 %
    Temperature
        GPU Current Temp                  : {temperature} C
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
        GPU Max Operating Temp            : 87 C
    GPU Power Readings
        Power Draw                        : 331.90 W
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
    Clocks
        Graphics                          : 930 MHz
        SM                                : 930 MHz
    Max Clocks
        Graphics                          : 1980 MHz
        SM                                : 1980 MHz
"""
HOSTS[250] = (
    lambda: {"paste": _QUERY.format(hot="Active", temperature=89)},
    lambda: {"paste": _QUERY.format(hot="Not Active", temperature=61)},
)
