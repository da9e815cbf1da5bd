"""The GPU driver: kernel side, user space, device nodes, daemons."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NOT_READ = Missing(Why.NOT_RECORDED, "driver", "not read")


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    mode: int
    uid: int
    gid: int
    accessible: Fact[bool]
    """Whether this session may open it for reading and writing (access lists and SELinux included; by the permission bits in a recording that was not asked)."""
    device: str = ""
    """``195:0``: the major and minor number that it leads to; empty where it was not seen."""
    driver_device: str = ""
    """The numbers that the driver has for it (/proc/devices); empty where they are not known."""


class AmdErrors(msgspec.Struct, frozen=True, kw_only=True):
    """What one block of an AMD GPU has counted since the driver was loaded."""

    address: str
    block: str
    """``umc`` is the memory, ``gfx`` the compute units, ``sdma``, ``xgmi_wafl`` …"""
    uncorrected: int
    corrected: int


class AmdClock(msgspec.Struct, frozen=True, kw_only=True):
    """At which clock an AMD GPU works at the moment of the look, and what it was told about it."""

    address: str
    level: Fact[str]
    """``auto``, or what somebody wrote: ``low``, ``high``, ``manual``, ``profile_peak`` … (power_dpm_force_performance_level)."""
    busy_pct: Fact[int]
    mhz: Fact[int]
    """The state of the shader clock that pp_dpm_sclk marks."""
    highest_mhz: Fact[int]


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    nvidia_devices: Fact[tuple[str, ...]] = _NOT_READ
    """PCI addresses of NVIDIA GPUs (vendor 10de, class 03xx)."""
    amd_devices: Fact[tuple[str, ...]] = _NOT_READ
    """PCI addresses of AMD accelerators and GPUs bound to amdgpu."""
    module_loaded: Fact[bool] = _NOT_READ
    """nvidia.ko in /proc/modules or /sys/module."""
    module_version: Fact[str] = _NOT_READ
    """Version of the loaded kernel module, e.g. ``580.65.06``."""
    module_flavour: Fact[str] = _NOT_READ
    """``open`` or ``proprietary``."""
    nouveau_loaded: Fact[bool] = _NOT_READ
    """nouveau, or its successor nova_core."""
    nouveau_barred: Fact[bool] = _NOT_READ
    """Whether a file of modprobe's or the command line bars nouveau, where it is loaded: it loaded before that was written, or from an initramfs
    that does not have it."""
    uvm_loaded: Fact[bool] = _NOT_READ
    uvm_hmm_disabled: Fact[bool] = _NOT_READ
    """nvidia_uvm's parameter uvm_disable_hmm; ABSENT where the module is not loaded, or is too old to have it."""
    peermem_loaded: Fact[bool] = _NOT_READ
    storage_loaded: Fact[bool] = _NOT_READ
    """nvidia-fs, the kernel's side of GPUDirect Storage."""
    direct_storage_only: Fact[bool] = _NOT_READ
    """Whether /etc/cufile.json forbids reading through the host's memory, and asks for nvidia-fs; ABSENT without that file."""
    library_version: Fact[str] = _NOT_READ
    """Version of the user-space driver that the loader takes first (libcuda.so.N.N.N / libnvidia-ml.so.N.N.N)."""
    library_versions: Fact[tuple[str, ...]] = _NOT_READ
    """Every version of libcuda or libnvidia-ml in the loader's directories."""
    empty_libraries: Fact[tuple[str, ...]] = _NOT_READ
    """Driver libraries of size 0: left in an image when a container with mounted libraries was saved."""
    libcuda: Fact[tuple[str, ...]] = _NOT_READ
    """Every libcuda.so.1 the loader could take, in its order; stubs among them."""
    libraries_apart: Fact[tuple[str, ...]] = _NOT_READ
    """Versions of the first libcuda.so.1 and of the libnvidia-ml.so.1 in its directory, where they differ; empty where they do not."""
    device_nodes: Fact[tuple[DeviceNode, ...]] = _NOT_READ
    """/dev/nvidia*; empty where there is none."""
    compute_node: Fact[DeviceNode] = _NOT_READ
    """AMD's /dev/kfd, by which programs compute; read where amdgpu has a device."""
    other_nodes: Fact[tuple[DeviceNode, ...]] = _NOT_READ
    """Those of an Intel GPU that is a card of its own (/dev/dri/renderD128), and of the GPU on a Jetson's chip (/dev/nvmap); empty where there is none."""
    amd_render_nodes: Fact[tuple[str, ...]] = _NOT_READ
    """Of the render nodes (``renderD128``) that the kernel lists for AMD's GPUs those that are in /dev/dri; ABSENT where it lists none."""
    level_zero: Fact[bool] = _NOT_READ
    """Whether the loader finds libze_intel_gpu.so.1, the user's side of the driver of Intel's GPUs; ABSENT without a card of Intel's."""
    amd_partitions: Fact[tuple[str, ...]] = _NOT_READ
    """Into which partitions each of ``amd_devices`` that tells it is divided (``SPX``: none, ``CPX``: one for each of its dies); empty where none tells."""
    amd_errors: Fact[tuple[AmdErrors, ...]] = _NOT_READ
    """Blocks that have counted errors, of the GPUs that tell; ABSENT where none of them counts (no RAS)."""
    amd_clocks: Fact[tuple[AmdClock, ...]] = _NOT_READ
    """Of the GPUs that are awake and tell it; empty where none does."""
    power_daemon: Fact[bool] = _NOT_READ
    """Whether nvidia-powerd (Dynamic Boost of laptops) runs."""
    persistenced: Fact[bool] = _NOT_READ
    """Whether nvidia-persistenced runs."""
    fabric_manager: Fact[bool] = _NOT_READ
    """Whether nv-fabricmanager runs."""
    fabric_manager_version: Fact[str] = _NOT_READ
    """As the last start in its log says."""
    fabric_manager_failure: Fact[str] = _NOT_READ
    """Why its last start failed, as a pasted log tells it; ``""`` if it did not, ``no NVSwitch`` where the driver showed it none."""
    imex: Fact[bool] = _NOT_READ
    """Whether nvidia-imex runs, which exports memory to GPUs of other hosts over NVLink."""
    imex_channels: Fact[tuple[str, ...]] = _NOT_READ
    """``/dev/nvidia-caps-imex-channels/channelN``; empty where there is none."""
    nvswitches: Fact[int] = _NOT_READ
    """Number of NVSwitch PCI functions (class 0680, vendor 10de)."""
    module_params: Fact[dict[str, str]] = _NOT_READ
    """/proc/driver/nvidia/params."""
    modules_for_kernel: Fact[bool] = _NOT_READ
    """Whether /lib/modules/<running kernel> holds an nvidia module."""
    module_barred_by: Fact[str] = _NOT_READ
    """File of modprobe.d that keeps the nvidia module, or where that is loaded nvidia_uvm, from loading; ABSENT for none, NOT_SUPPORTED where both are loaded."""
    build_failure: Fact[str] = _NOT_READ
    """Kernel for which DKMS could not build the NVIDIA module, where its output was pasted."""
    secure_boot: Fact[bool] = _NOT_READ
    wsl: Fact[bool] = _NOT_READ
    """Whether /dev/dxg is there: the GPU comes from Windows."""
    wsl_libraries_on_path: Fact[bool] = _NOT_READ
    """Whether the loader looks into /usr/lib/wsl/lib; ABSENT outside WSL."""
    wsl_without_cuda: Fact[bool] = _NOT_READ
    """Whether Windows hands on NVIDIA's display driver (nvlddmkm.sys in a folder nv*.inf_* below /usr/lib/wsl/drivers) and no libcuda.so.1; ABSENT outside WSL."""
