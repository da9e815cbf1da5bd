"""Arm hosts: Grace and its kin in racks, on desks and in robots, Graviton, Altra. The shapes as platforms.py takes them."""

from __future__ import annotations

from machines import (
    Recording,
    arm,
    cpus,
    cut,
    function,
    gpus,
    interpreter,
    made_by,
    nodes,
    ordinary,
    over,
    system,
    torch,
    without_gpus,
)
from torchtune_sys.model.facts.gpu import Gpu

NOT_SUPPORTED = {"$missing": "not-supported", "source": "NVML", "detail": "not supported by this GPU"}
PCI_PLACES = ("/sys/bus/pci/devices/", "/sys/devices/pci")
_V2 = [
    "BogoMIPS\t: 2000.00",
    "Features\t: fp asimd sve sve2 bf16 i8mm",
    "CPU implementer\t: 0x41",
    "CPU architecture: 8",
    "CPU part\t: 0xd4f",
]


def gb200_tray() -> Recording:
    """Two Grace, four GPUs whose memory is the nodes 2, 10, 18 and 26 (vllm-project/vllm#39361), the rest reserved for MIG."""
    host = system(ordinary("gh200"), name="nvl72-t07")
    host = made_by(host, "NVIDIA", "GB200 NVL", "NVIDIA")
    host = cpus(host, packages=["0-71", "72-143"], info=[_V2], driver="cppc_cpufreq")
    rows = dict.fromkeys(range(34), ("", 0))
    rows |= {0: ("0-71", 502_000_000), 1: ("72-143", 502_000_000), **dict.fromkeys((2, 10, 18, 26), ("", 193000000))}
    host = nodes(host, rows)
    places = ["pci0008:00/0008:06:00.0", "pci0009:00/0009:06:00.0", "pci0018:00/0018:06:00.0", "pci0019:00/0019:06:00.0"]
    host = cut(host, "/sys/devices/pci0009:01")
    return gpus(
        {**host, "links": {k: v for k, v in host["links"].items() if "0009:01" not in k}},
        places,
        ids="10de:2941",
        nodes_=[0, 0, 1, 1],
        name="NVIDIA GB200",
        architecture="Blackwell",
        compute_capability=[10, 0],
        memory_total_bytes=198_674_743_296,
        power_limit_mw=1_200_000,
        power_default_mw=1_200_000,
        fabric_state="completed",
        fabric_status="success",
        fabric_health=[],
        fabric_clique=32766,
    )


def dgx_spark() -> Recording:
    """GB10: no memory of its own, no power limit, a link that NVML calls PCIe 1 x1 (Syllo/nvtop#426, leptonai/gpud#1170)."""
    host = system(ordinary("gh200"), name="spark-2f1c", kernel="6.14.0-1013-nvidia")
    host = made_by(host, "NVIDIA", "NVIDIA_DGX_Spark", "American Megatrends International, LLC.")
    host = cpus(host, packages=["0-19"], info=[arm("0xd87"), arm("0xd85")], driver="cppc_cpufreq")
    host = nodes(host, {0: ("0-19", 127_600_748)})
    host = cut(host, "/sys/devices/pci0009:01", "/sys/devices/pci0005:01")
    host = {**host, "links": {k: v for k, v in host["links"].items() if "0009:01" not in k and "0005:01" not in k}}
    host = gpus(
        host,
        ["pci000f:00/000f:00:00.0/000f:01:00.0"],
        ids="10de:2e12",
        nodes_=[0],
        name="NVIDIA GB10",
        architecture="Blackwell",
        compute_capability=[12, 1],
        memory_total_bytes=NOT_SUPPORTED,
        memory_used_bytes=NOT_SUPPORTED,
        power_limit_mw=NOT_SUPPORTED,
        power_default_mw=NOT_SUPPORTED,
        pcie_gen=1,
        pcie_width=1,
        pcie_gen_max=5,
        pcie_width_max=16,
        ecc=NOT_SUPPORTED,
        ecc_uncorrected_volatile=NOT_SUPPORTED,
        rows_remap_pending=NOT_SUPPORTED,
        rows_remap_failed=NOT_SUPPORTED,
        nvlinks=NOT_SUPPORTED,
        nvlinks_down=NOT_SUPPORTED,
        nvlink_errors=NOT_SUPPORTED,
        mig=NOT_SUPPORTED,
        bar1_total_bytes=NOT_SUPPORTED,
    )
    gpu = "/sys/devices/pci000f:00/000f:00:00.0/000f:01:00.0"
    host = over(host, files={f"{gpu}/current_link_speed": "2.5 GT/s PCIe", f"{gpu}/current_link_width": "1"})
    for place in ("pci0000:00/0000:00:00.0/0000:01:00.0", "pci0002:00/0002:00:00.0/0002:01:00.0"):
        host = function(host, place, "15b3:1021", "20000", "mlx5_core", current_link_width="4", max_link_width="16")
    return host


def jetson_orin() -> Recording:
    """L4T 36.4: nvgpu on the SoC, no GPU on the PCI bus, an NVML that knows the name only (anduril/jetpack-nixos#371)."""
    host = cut(system(ordinary("gh200"), name="orin-1", kernel="5.15.148-tegra"), "/sys/class/dmi")
    host = system(
        host,
        os_={"PRETTY_NAME": "Ubuntu 22.04.5 LTS", "NAME": "Ubuntu", "VERSION_ID": "22.04", "ID": "ubuntu", "ID_LIKE": "debian"},
    )
    host = cpus(host, packages=["0-3", "4-7", "8-11"], info=[arm("0xd42")], driver="tegra194", governor="schedutil")
    host = nodes(host, {0: ("0-11", 64_349_708)})
    drives = {path: text for path, text in host["files"].items() if path.startswith("/sys/devices/pci") and "/nvme/" in path}
    host = cut(host, "/sys/devices/pci", "/proc/driver/nvidia", "/sys/module/nvidia", "/dev/nvidia", "/run/nvidia-persistenced")
    host = over(host, files=drives)
    host = {**host, "links": {k: v for k, v in host["links"].items() if not k.startswith(PCI_PLACES)}}
    host = function(host, "platform/14160000.pcie/pci0004:00/0004:00:00.0", "10de:229c", "60400", "pcieport", -1)
    host = over(
        host,
        files={
            "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
            "/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
            "/proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0",
            "/proc/device-tree/cpus/cpu-map/cluster0/core0/cpu": "",
            "/proc/modules": "nvgpu 2654208 20 - Live 0x0000000000000000\nnvmap 196608 80 nvgpu, Live 0x0000000000000000\n",
            "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1": "",
            "/usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ml.so.1": "",
        },
        stats={"/dev/nvhost-gpu": {"mode": 8630, "uid": 0, "gid": 44, "size": 0, "special": "505:1"}},
    )
    # JetPack's torch is linked with the system's CUDA
    host = torch(cut(host, "/home/ubuntu/train/.venv/lib/python3.12/site-packages/nvidia_"), "2.8.0", cuda="12.6")
    nvml = host["answers"]["nvml"]
    bare = {key: NOT_SUPPORTED for key in Gpu.__struct_fields__ if key not in ("index", "lost", "reset_required")}
    gpu = {**bare, "index": 0, "name": "Orin (nvgpu)", "uuid": "GPU-5c0ffee0-0000-4000-8000-00000000000a", "processes": []}
    return over(
        host,
        answers={
            "nvml": {
                **nvml,
                "driver_version": "540.4.0",
                "cuda_driver_version": "12.6",
                "library_version": "12.540.4.0",
                "devices": [gpu],
            }
        },
    )


def graviton() -> Recording:
    """c7g.16xlarge: Neoverse V1, no frequency scaling to be seen, the CPU wheel of the package index."""
    host = without_gpus(system(ordinary("aws-g5"), name="ip-10-0-4-40", kernel="6.8.0-1040-aws", machine="aarch64"))
    host = made_by(host, "Amazon EC2", "c7g.16xlarge", "Amazon EC2")
    host = cpus(host, packages=["0-63"], info=[arm("0xd40", "fp asimd sve bf16 i8mm")])
    host = nodes(host, {0: ("0-63", 129_000_000)})
    return interpreter(torch(host, "2.11.0+cpu", arch="aarch64"), machine="aarch64")


def altra_a100() -> Recording:
    """Ampere Altra with two A100 in PCIe slots and no link between them."""
    host = system(ordinary("gh200"), name="altra-1", kernel="6.8.0-45-generic")
    host = made_by(host, "GIGABYTE", "G242-P33-00", "GIGABYTE")
    host = cpus(host, packages=["0-79"], info=[arm("0xd0c")], driver="cppc_cpufreq")
    host = nodes(host, {0: ("0-79", 263_000_000)})
    host = cut(host, "/sys/devices/pci0009:01")
    host = {**host, "links": {k: v for k, v in host["links"].items() if "0009:01" not in k}}
    host = gpus(
        host,
        ["pci000c:00/000c:00:01.0/000c:01:00.0", "pci000d:00/000d:00:01.0/000d:01:00.0"],
        ids="10de:20b5",
        nodes_=[0, 0],
        name="NVIDIA A100 80GB PCIe",
        architecture="Ampere",
        compute_capability=[8, 0],
        memory_total_bytes=85_899_345_920,
        power_limit_mw=300_000,
        power_default_mw=300_000,
        pcie_gen=4,
        pcie_gen_max=4,
        nvlinks=NOT_SUPPORTED,
        nvlinks_down=NOT_SUPPORTED,
    )
    for gpu in ("pci000c:00/000c:00:01.0/000c:01:00.0", "pci000d:00/000d:00:01.0/000d:01:00.0"):
        speed = {f"/sys/devices/{gpu}/{which}_link_speed": "16.0 GT/s PCIe" for which in ("current", "max")}
        host = over(host, files=speed)
    answer = host["answers"]["nvml"]
    pair = {"first": 0, "second": 1, "read": "ok", "write": "ok", "nvlink": "topology-not-supported"}
    return over(host, answers={"nvml": {**answer, "p2p": [pair]}})
