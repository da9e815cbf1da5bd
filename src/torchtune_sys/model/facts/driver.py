"""The GPU driver: kernel side, user space, device nodes, daemons."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    mode: int
    uid: int
    gid: int
    accessible: Fact[bool]
    """Whether this session may open it for reading and writing (as far as file permissions tell)."""


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    nvidia_devices: Fact[tuple[str, ...]]
    """PCI addresses of NVIDIA GPUs (vendor 10de, class 03xx)."""
    amd_devices: Fact[tuple[str, ...]]
    """PCI addresses of AMD accelerators and GPUs bound to amdgpu."""
    module_loaded: Fact[bool]
    """nvidia.ko in /proc/modules or /sys/module."""
    module_version: Fact[str]
    """Version of the loaded kernel module, e.g. ``580.65.06``."""
    module_flavour: Fact[str]
    """``open`` or ``proprietary``."""
    nouveau_loaded: Fact[bool]
    uvm_loaded: Fact[bool]
    peermem_loaded: Fact[bool]
    library_version: Fact[str]
    """Version of the user-space driver (libcuda.so.N.N.N / libnvidia-ml.so.N.N.N on the loader's path)."""
    libcuda: Fact[tuple[str, ...]]
    """Every libcuda.so.1 the loader could take, in its order."""
    device_nodes: Fact[tuple[DeviceNode, ...]]
    persistenced: Fact[bool]
    """Whether nvidia-persistenced runs."""
    fabric_manager: Fact[bool]
    """Whether nv-fabricmanager runs."""
    nvswitches: Fact[int]
    """Number of NVSwitch PCI functions (class 0680, vendor 10de)."""
    module_params: Fact[dict[str, str]]
    """/proc/driver/nvidia/params."""
    modules_for_kernel: Fact[bool]
    """Whether /lib/modules/<running kernel> holds an nvidia module."""
    secure_boot: Fact[bool]
